"""Gangs for asyncio: each gang has an ``async with`` block, and never outlives its block.

Example::

    async with aio.Gang(name="train", entrypoint=train, args={0: (), 1: ()}) as gang:
        async for event in gang.events():
            print(event)
        result = await gang.wait()
"""

from supervise.aio.gang import Event as Event
from supervise.aio.gang import Events as Events
from supervise.aio.gang import EventsDropped as EventsDropped
from supervise.aio.gang import Gang as Gang

__all__ = ["Event", "Events", "EventsDropped", "Gang"]
