"""What is not allowed, and what is done about it.

One pure function for each judgement (``cap``, ``foreign``, ``outside``, ``idle``, ``lease``,
``quota``): what was seen goes in, breaches come out. ``ladder`` says which step is due for each of
them, ``enforcer`` takes it. ``settings`` is what can be configured.
"""
