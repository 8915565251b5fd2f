"""What every story of the broker has: a world, an end, and what must hold after each step."""

from __future__ import annotations

from hypothesis.stateful import RuleBasedStateMachine, invariant

from tests.unit.world import World


class Story(World, RuleBasedStateMachine):
    """A state machine over a world; derived classes say what happens in it."""

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        World.__init__(self)

    def teardown(self) -> None:
        self.close()

    @invariant()
    def nothing_is_given_twice(self) -> None:
        self.check_devices()

    @invariant()
    def memory_is_the_ledger(self) -> None:
        self.check_ledger()

    @invariant()
    def what_is_used_is_counted(self) -> None:
        self.check_counted()
