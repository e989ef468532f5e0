"""`tandem replay`: re-executes the scheduler on the frames that a rank has recorded, and compares every digest."""

from collections.abc import Iterator
from pathlib import Path

from tandem.assembly import build_scheduler
from tandem.core.errors import ConfigError
from tandem.core.ids import Tick
from tandem.core.inputs import Frame
from tandem.core.plan import Ask, CutOff, Note, Plan
from tandem.core.recorder import Entry
from tandem.runtime.records import Ending, Heading, Record
from tandem.sim.story import inputs, known, rows

EXIT_DIFFERS = 1
"""Records or digests part somewhere, or a step fails."""


class Rerun:
    """A scheduler that is fed from a record, with what is in flight and what is being voted on."""

    def __init__(self, heading: Heading) -> None:
        self.scheduler = build_scheduler(heading.group, heading.limits)
        self.steps = 0
        self._flights: dict[Tick, Plan] = {}
        self._votes: dict[Tick, tuple[Ask, ...]] = {}

    def step(self, frame: Frame) -> Plan:
        """One more tick. Raises what the step raises."""
        plan = self.scheduler.step(frame)
        self.steps += 1
        for harvest in frame.harvests:
            del self._flights[harvest.tick]
        for outcome in frame.ballots:
            del self._votes[outcome.tick]
        if plan.rows:
            self._flights[plan.tick] = plan
        if plan.asks:
            self._votes[Tick(plan.tick + 1)] = plan.asks
        return plan

    def state(self) -> Iterator[str]:
        """The replicated state, line by line."""
        scheduler = self.scheduler
        yield f"after tick {scheduler.tick}: digest {scheduler.digest:016x}"
        orders = [word for word in ("paused", "draining") if getattr(scheduler.controls, word)]
        yield from (f"  the group is {word}" for word in orders)
        yield f"  queues (rooms, waiting, running): {', '.join(map(str, scheduler.role.lengths()))}"
        yield f"  pages: {', '.join(f'{count} {state}' for state, count in scheduler.role.pool.counts().items())}"
        yield from (f"  in flight: tick {tick}, slot {plan.slot}: {rows(plan)}" for tick, plan in self._flights.items())
        yield from (f"  open vote of baton {tick}: {questions(asks)}" for tick, asks in self._votes.items())


def replay(path: Path, to: int | None) -> int:
    """Re-execute a record up to tick `to`, or to its end; returns the exit status. Raises ConfigError."""
    record = Record(path)
    print(*title(record.heading), sep="\n")
    rerun = Rerun(record.heading)
    for entry in until(record.entries(), to):
        check_beginning(record, rerun, entry)
        fault = retold(rerun, entry)
        if fault is not None:
            print(*fault, *rerun.state(), sep="\n")
            return EXIT_DIFFERS
    if to is not None and rerun.scheduler.tick < to:
        raise ConfigError(f"--to is {to}: the record ends with tick {rerun.scheduler.tick}")
    if record.cut:
        print("what follows is cut off: the rank ended while it wrote")
    print(f"{rerun.steps} ticks, all digests equal")
    print(*rerun.state(), sep="\n")
    if record.heading.ending is not None and to is None:
        print(*on_the_rank(record.heading.ending), sep="\n")
    return 0


def until(entries: Iterator[Entry], to: int | None) -> Iterator[Entry]:
    """The entries up to this tick."""
    for entry in entries:
        if to is not None and entry.frame.tick > to:
            return
        yield entry


def check_beginning(record: Record, rerun: Rerun, entry: Entry) -> None:
    """Raises ConfigError for a record whose first entry is not that of tick 0."""
    if rerun.steps == 0 and entry.frame.tick != 0:
        raise ConfigError(
            f"{record.path}: it begins with tick {entry.frame.tick}, so it cannot be re-executed; start ranks with "
            "--record-dir to keep every tick, or compare it with another rank's: tandem replay FILE OTHER"
        )


def retold(rerun: Rerun, entry: Entry) -> list[str] | None:
    """Re-execute one tick: what is wrong with it, in lines, or None."""
    frame, recorded = entry.frame, entry.digest
    was = "did not end" if recorded is None else f"led to digest {recorded:016x}"
    try:
        plan = rerun.step(frame)
    except Exception as error:  # noqa: BLE001  whatever the step raises is what we look for
        why = f"{type(error).__name__}: {error}"
        return [f"tick {frame.tick} cannot be re-executed: {why}", f"  on the rank, it {was}", *brought(frame)]
    if recorded is None:
        print(f"tick {frame.tick} did not end on the rank; it does here")
    elif plan.digest != recorded:
        here = f"tick {frame.tick} differs: it leads to digest {plan.digest:016x}, on the rank it {was}"
        return [here, *brought(frame), *decided(plan)]
    return None


def compare(path: Path, other_path: Path, to: int | None) -> int:
    """Find the first tick at which the records of two ranks part; returns the exit status. Raises ConfigError."""
    record, other = Record(path), Record(other_path)
    for each in (record, other):
        print(f"{each.path.name}:", *title(each.heading), sep="\n")
    check_same_ring(record, other)
    both = 0
    for one, two in pairs(until(record.entries(), to), until(other.entries(), to)):
        both += 1
        if parted(one, two):
            print(*parting(record, other, one, two), sep="\n")
            return EXIT_DIFFERS
    if not both:
        raise ConfigError(f"{path} and {other_path} have no tick in common")
    print(f"{both} ticks in common, all equal")
    return 0


def check_same_ring(record: Record, other: Record) -> None:
    """Raises ConfigError unless the two ranks were to take the same decisions."""
    one, two = record.heading, other.heading
    for name in ("group", "epoch", "limits"):
        here, there = getattr(one, name), getattr(two, name)
        if here != there:
            raise ConfigError(f"{record.path} and {other.path} are not of one ring: {name} is {here} and {there}")


def pairs(left: Iterator[Entry], right: Iterator[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """The entries of the ticks that both have."""
    one, two = next(left, None), next(right, None)
    while one is not None and two is not None:
        ahead = one.frame.tick - two.frame.tick
        if ahead == 0:
            yield one, two
        if ahead <= 0:
            one = next(left, None)
        if ahead >= 0:
            two = next(right, None)


def parted(one: Entry, two: Entry) -> bool:
    """Whether two ranks have not done the same; a step that did not end on one of them is compared by its frame."""
    stepped = one.digest is not None and two.digest is not None
    return one.frame != two.frame or (stepped and one.digest != two.digest)


def parting(record: Record, other: Record, one: Entry, two: Entry) -> Iterator[str]:
    """The tick at which they part, and what re-executing says to either."""
    tick, told = one.frame.tick, ((record, one), (other, two))
    if one.frame != two.frame:
        yield f"tick {tick} differs: the frames are not the same"
        for each, entry in told:
            yield f"{each.path.name}:"
            yield from brought(entry.frame)
        return
    yield f"tick {tick} differs: the same frame has led to other digests"
    yield from brought(one.frame)
    for each, entry in told:
        yield f"{each.path.name}: digest {entry.digest:016x}"
        yield from (f"  {line}" for line in judged(each, tick))


def judged(record: Record, tick: Tick) -> list[str]:
    """What re-executing a record up to this tick says, in lines."""
    rerun = Rerun(record.heading)
    for entry in until(record.entries(), tick):
        if rerun.steps == 0 and entry.frame.tick != 0:
            return [f"it begins with tick {entry.frame.tick}, so it cannot be re-executed"]
        fault = retold(rerun, entry)
        if fault is not None:
            return fault
    return ["re-executed up to here, all digests are equal"]


# in words


def title(heading: Heading) -> Iterator[str]:
    """Whose record it is, and how it ended."""
    group, ending = heading.group, heading.ending
    yield f"{group.role.value} {group.name} rank {heading.rank} of {group.size}, epoch {heading.epoch}"
    if ending is not None:
        awaiting = f", awaiting {ending.awaiting}" if ending.awaiting else ""
        yield f"  ended after tick {ending.tick}{awaiting}: {ending.cause}"


def brought(frame: Frame) -> Iterator[str]:
    """A frame."""
    yield f"  frame: slot {frame.slot}, {frame.now_ms} ms {inputs(frame)}"


def decided(plan: Plan) -> Iterator[str]:
    """A plan."""
    yield f"  runs: {rows(plan) or 'nothing'}"
    if plan.asks:
        yield f"  asks: {questions(plan.asks)}"
    if plan.notes:
        yield f"  notes: {', '.join(map(noted, plan.notes))}"


def noted(note: Note) -> str:
    """A note, in two words."""
    about = note.peer if isinstance(note, CutOff) else f"r{note.room.rid}"
    return f"{type(note).__name__.lower()} {about}"


def questions(asks: tuple[Ask, ...]) -> str:
    """What is voted on."""
    return ", ".join(f"{ask.question.value} r{ask.room.rid}" for ask in asks)


def on_the_rank(ending: Ending) -> Iterator[str]:
    """What a dump has beside the replicated state: this rank's own."""
    yield "on the rank:"
    yield from (f"  in hand: tick {plan.tick}: {rows(plan)}" for plan in ending.in_hand)
    yield from (f"  knows: {known(fact)} of r{room.rid}" for room, fact in ending.facts)
    yield f"  {ending.stale} messages of other epochs"
