"""A run told in words: what each rank was told, and what it did about it."""

from collections.abc import Iterable

from tandem.core import effects as done
from tandem.core import events as seen
from tandem.core.effects import Effect
from tandem.core.events import Event
from tandem.core.ids import Room
from tandem.core.inputs import Arrival, Control, FirstToken, Frame, Knobs, Submit
from tandem.core.messages import (
    BallotBack,
    Baton,
    Cancel,
    Cancelled,
    Commit,
    Done,
    Evicted,
    Fact,
    Grant,
    Hidden,
    Quiet,
    Return,
    Token,
)
from tandem.core.plan import Plan

Said = Submit | Cancel | Control | Knobs | Token | Done | Evicted | FirstToken | Quiet | Cancelled | Grant | Commit
OnRing = Baton | Hidden | Return | BallotBack


def tell(now_us: int, who: str, event: Event, effects: list[Effect]) -> list[str]:
    """Lines about one event; none if nothing came of it."""
    if not effects:
        return []
    told = [f"{now_us / 1000:6.2f} ms  {who:5} {heard(event)}"]
    return told + [f"{'':17}{said}" for said in map(did, effects)]


def name(room: Room) -> str:
    """`r7`, and `r7#2` in its second attempt."""
    return f"r{room.rid}" if room.attempt == 1 else f"r{room.rid}#{room.attempt}"


def numbers(ids: Iterable[int]) -> str:
    """`3, 4, 9`."""
    return ", ".join(map(str, ids))


def heard(event: Event) -> str:
    """What a rank observed."""
    match event:
        case seen.Started(tick=tick):
            return f"has begun tick {tick}"
        case seen.LayerRan(tick=tick, layer=layer):
            return f"has computed layer {layer} of tick {tick}"
        case seen.Ran(tick=tick, tokens=tokens):
            return f"has computed tick {tick}" + "".join(f", sampled {ids[0]} for {name(room)}" for room, ids in tokens)
        case seen.Moved(ticket=ticket, result=result):
            return f"write {ticket} ended {result.value}"
        case seen.Verified(commit=commit, intact=intact):
            return f"has compared layer {commit.layer} of {name(commit.room)}: {'intact' if intact else 'other bytes'}"
        case seen.Fenced(group=group):
            return f"has fenced {group} off"
        case seen.Compiled(room=room, ok=ok):
            return f"has compiled the grammar of {name(room)}" if ok else f"cannot compile the grammar of {name(room)}"
        case seen.BackedUp(room=room):
            return f"has copied {name(room)} to host memory"
        case seen.PeerOpened(hello=hello):
            return f"meets {hello.group}.{hello.rank}"
        case seen.PeerLost(group=group, rank=rank):
            return f"loses {group}.{rank}"
        case seen.Combined(room=room, fact=fact):
            return f"group: {known(fact)} of {name(room)}"
        case seen.Woke():
            return "wakes"
        case _:
            return f"<- {saying(event)}"


def did(effect: Effect) -> str:
    """What a rank did."""
    match effect:
        case done.SendNext(message=passed):
            return f"-> ring: {saying(passed)}"
        case done.SendHidden(header=header):
            return f"-> ring: {saying(header)}"
        case done.Launch(plan=plan):
            return f"launches tick {plan.tick}: {rows(plan)}"
        case done.Observe(room=room, fact=fact):
            return f"knows: {known(fact)} of {name(room)}"
        case done.Forget(room=room):
            return f"forgets {name(room)}"
        case done.Post():
            blocks = ", ".join(f"{source} to {target}" for source, target in effect.blocks)
            return (
                f"posts write {effect.ticket} of layer {effect.layer}, pages {blocks}, to {effect.peer}.{effect.rank}"
            )
        case done.Drop(room=room):
            return f"drops the posts of {name(room)} that have not begun"
        case done.Fence(group=group):
            return f"fences {group} off"
        case done.Verify(commit=commit):
            return f"compares layer {commit.layer} of {name(commit.room)} with what was sent"
        case done.Compile(room=room):
            return f"compiles the grammar of {name(room)}"
        case done.BackUp(room=room, pages=pages, host_pages=host_pages):
            return f"copies pages {numbers(pages)} of {name(room)} to host pages {numbers(host_pages)}"
        case done.Restore(room=room, host_pages=host_pages, pages=pages):
            return f"copies host pages {numbers(host_pages)} of {name(room)} back to pages {numbers(pages)}"
        case done.TellRouter(message=said):
            return f"-> router: {saying(said)}"
        case done.TellPeer(group=group, rank=rank, message=told):
            return f"-> {group}.{rank}: {saying(told)}"


def saying(message: Said | OnRing) -> str:
    """A message in words."""
    match message:
        case Submit(work=work):
            return f"submit {name(work.room)}, {len(work.prompt)} tokens, at most {work.max_tokens} more"
        case Token(room=room, index=index, token=token):
            return f"token {index} of {name(room)} is {token}"
        case FirstToken(room=room, token=token):
            return f"token 0 of {name(room)} is {token}"
        case Cancel(room=room, reason=reason) | Cancelled(room=room, reason=reason) | Done(room=room, reason=reason):
            return f"{type(message).__name__.lower()} {name(room)}: {reason.value}"
        case Evicted(room=room):
            return f"evicted {name(room)}"
        case Control(order=order):
            return order.value
        case Knobs():
            turned = {field: getattr(message, field) for field in message.__struct_fields__}
            return ", ".join(f"{field} is now {value}" for field, value in turned.items() if value is not None)
        case Quiet(room=room):
            return f"quiet {name(room)}"
        case Grant(room=room, pages=pages):
            return f"grant {name(room)} pages {numbers(pages)}"
        case Commit(room=room, layer=layer, first=first, last=last):
            return f"commit {name(room)} layer {layer}, tokens {first} to {last - 1}"
        case Baton(frame=frame, ballot=ballot):
            vote = "" if ballot is None else f", ballot {ballot:b}"
            return f"baton {frame.tick} {inputs(frame)}{vote}"
        case Hidden(tick=tick, rows=tokens):
            return f"hidden states of tick {tick}, {tokens} tokens"
        case Return(tick=tick):
            return f"return of tick {tick}"
        case BallotBack(tick=tick, yes=yes):
            return f"ballot {yes:b} of tick {tick} is back"


def inputs(frame: Frame) -> str:
    """What a frame brings."""
    brought = [arrived(arrival) for arrival in frame.arrivals]
    brought += [f"{name(verdict.room)} is {verdict.kind.value}" for verdict in frame.verdicts]
    brought += [f"harvest of tick {harvest.tick}" for harvest in frame.harvests]
    brought += [f"outcome {outcome.yes:b} of tick {outcome.tick}" for outcome in frame.ballots]
    return f"({', '.join(brought)})"


def arrived(arrival: Arrival) -> str:
    """What was said to the group, in a word: `heard` has told the rest."""
    return arrival.order.value if isinstance(arrival, Control) else type(arrival).__name__.lower()


def rows(plan: Plan) -> str:
    """What a plan computes."""
    told = []
    for row in plan.rows:
        span = f"token {row.start}" if len(row.tokens) == 1 else f"tokens {row.start} to {row.end - 1}"
        told.append(f"{span} of {name(row.room)} in pages {numbers(row.pages)}")
    return "; ".join(told)


def known(fact: Fact | None) -> str:
    """A fact in words."""
    if fact is None:
        return "nothing"
    words = [fact.progress.name.lower().replace("_", " ")]
    words += ["failed"] * fact.failed + ["corrupt"] * fact.corrupt
    words += ["quiet"] * fact.quiet + ["fenced"] * fact.fenced
    words += [f"{fact.backups} times backed up"] if fact.backups else []
    return ", ".join(words)
