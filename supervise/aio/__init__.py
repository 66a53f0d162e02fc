"""Gangs for asyncio: each gang has an ``async with`` block, and never outlives its block.

Example::

    async with aio.Gang(name="train", entrypoint=train, args={0: (), 1: ()}) as gang:
        async for event in gang.events():
            print(event)
        result = await gang.wait()
"""

from supervise.aio.gang import Event as Event, Events as Events, EventsDropped as EventsDropped, Gang as Gang

__all__ = ["Event", "Events", "EventsDropped", "Gang"]
