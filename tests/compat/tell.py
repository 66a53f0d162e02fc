"""What the families share."""

import os


def family(function):
    """Mark a function as one of the small families."""
    function.is_family = True
    return function


_SHARED = {
    "ChildFailedError",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SignalException",
}


def kind(error):
    """Return the class that a caller would catch: ours have classes of their own below PyTorch's."""
    classes = type(error).__mro__
    return next(c.__name__ for c in classes if not c.__module__.startswith("supervise.") or c.__name__ in _SHARED)


def outcome(function, *args, **kwargs):
    """Return what a call returned or raised."""
    try:
        return ["returned", function(*args, **kwargs)]
    except BaseException as error:
        return ["raised", kind(error), str(error)]


def scrub(text, **words):
    """Return a text with a few words of this run replaced."""
    for name, word in words.items():
        text = text.replace(str(word), f"<{name}>")
    return text.replace(str(os.getpid()), "<host pid>")
