"""The plugin for SGLang with one clause left out, each in a class: every one of them must be caught."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field

from tidegate_engines.sglang.lost import LostSlots

#: Random runs of which at least one breaks when a clause is left out.
RUNS = 100


@dataclass(frozen=True)
class Traffic:
    """What is asked of an engine, and how often memory is taken."""

    #: Chance in each turn that one more request comes.
    come: float = 0.3
    #: Chance of a request that it goes away in a turn, and of logprobs that it asks for.
    abort: float = 0.03
    logprobs: float = 0.5
    #: Prefixes that prompts begin with, and tokens of one; 0: as many as the engine's kind has.
    prefixes: int = 2
    prefix: int = 0
    #: Chance of a prompt to have all of its prefix, and of tokens behind it.
    whole: float = 0.5
    tail: float = 0.7
    #: Else: waves of requests, one in each turn, with so many tokens of the wave's own prefix and so many others.
    waves: tuple[tuple[int, int], ...] = ()
    #: Tokens of an answer.
    tokens: int = 36
    #: Chance at each moment that blocks are taken, and blocks taken at once.
    reclaim: float = 0.03
    blocks: int = 6
    #: Chance that they are of a request of a step under way, and rather what it has given up since.
    aimed: float = 0.0
    #: Chance in each turn of an operator's pause, which retracts what runs.
    pause: float = 0.0


USUAL = Traffic()
#: Who waits for ever stays.
PATIENT = Traffic(abort=0.0)
#: Paused again and again, with memory taken while the last step's results are waited for.
PAUSES = Traffic(abort=0.0, pause=0.15, reclaim=0.06)
#: Several prompts in a step, all with logprobs.
SHORT_PROMPTS = Traffic(come=0.9, abort=0.0, logprobs=1.0, prefix=6, tokens=8, reclaim=0.06, blocks=2)
#: The second of a wave reads the tokens of the first in slots of its own, before those are cached; then it is given the
#: first one's, and the third one is given what it wrote behind.
ALIKE = Traffic(
    abort=0.0,
    logprobs=0.0,
    prefixes=3,
    prefix=16,
    waves=((12, 1), (16, 8), (16, 4)),
    tokens=4,
    reclaim=0.04,
    blocks=1,
    aimed=1.0,
)


class NoRetract(LostSlots):
    """Requests that lost a slot go on."""

    def _retract(self, hit):
        pass


class NoDrop(LostSlots):
    """What a hit request has under way is used."""

    @contextmanager
    def arrived(self, result):
        mine = [request for each in self.flights if each.result is result for request in each.requests]
        with super().arrived(result):
            marked = [request for request in mine if request.is_retracted]
            for request in marked:
                request.is_retracted = False
            try:
                yield
            finally:
                for request in marked:
                    request.is_retracted = True


class NoPassingOver(LostSlots):
    """Without overlap SGLang is left to expect no retracted request."""

    @contextmanager
    def _passing_over(self):
        yield


class NoHold(LostSlots):
    """A retracted request is scheduled while a step that it was in is under way."""

    def _held(self):
        return []


class NoLeave(LostSlots):
    """Retracted requests stay in their batches."""

    def _leave_batches(self):
        pass


class NoLeaveInPause(LostSlots):
    """Requests that lose memory in the last step before a pause stay in the batches that SGLang retracts then."""

    @contextmanager
    def taking_in(self):
        yield


class NoPurge(LostSlots):
    """The prefix cache is left as it is."""

    def _purge(self, bad):
        pass


class PurgeLostOnly(LostSlots):
    """Only lost slots leave the prefix cache, not what was written from them."""

    def _reach(self, lost):
        hit, _ = super()._reach(lost)
        return hit, lost


class DirectHoldersOnly(LostSlots):
    """Whoever holds a slot that was written from a lost one, but no lost one, goes on."""

    def _reach(self, lost):
        _, bad = super()._reach(lost)
        return list({id(request): request for request, row in self._rows() if lost[row].any()}.values()), bad


class NoWithhold(LostSlots):
    """Lost slots may be allocated at once."""

    def _withhold(self, lost):
        pass

    def _give_back(self, back):
        pass


class NoParted(LostSlots):
    """Requests that gave their row up, or got another, while their step was under way are forgotten."""

    def parting(self, request):
        pass


class NoWhole(LostSlots):
    """Of a step with logprobs those that lost nothing are used."""

    def launched(self, batch, result):
        super().launched(batch, result)
        self.flights[-1].whole = False


class NoUnsay(LostSlots):
    """The logprob of a first token that was dropped counts as sent."""

    def _unsay(self, passed):
        pass


class NoSpareChunk(LostSlots):
    """SGLang goes on with a prompt in chunks without the memory for it."""

    def _spare_chunk(self):
        pass


class Abort(LostSlots):
    """SGLang aborts a request that does not fit while memory is away."""

    def no_abort(self, batch, original, *args):
        return original(batch, *args)


class NobodyPasses(LostSlots):
    """Who could not run even alone keeps all behind it waiting."""

    def _passed(self):
        return []


class NoShow(LostSlots):
    """SGLang's own check for leaks counts withheld slots as lost ones."""


def _no_show(state):
    state.__class__ = NoShow
    state.slots.showing = lambda call: call()


class NoReset(LostSlots):
    """What is withheld is free again after SGLang's cache has been flushed."""


def _no_reset(state):
    state.__class__ = NoReset
    clear = state.slots.allocator.clear.__closure__
    original = next(cell.cell_contents for cell in clear if getattr(cell.cell_contents, "__name__", "") == "clear")
    state.slots.allocator.clear = original


class NoRoom(NobodyPasses):
    """Where it asks for more than is known, SGLang is not told that there may be room again."""

    def _reopen(self):
        pass


class NoTurn(LostSlots):
    """Only a step's results are a reason to ask what was lost."""

    def turn(self):
        self._leave_batches()


class NoForget(LostSlots):
    """The agent is not told that a request is over."""

    def _forget(self):
        for name in [name for name, (request, *_) in self._said.items() if self.ways.row(request) is None]:
            del self._said[name]


def become(kind):
    """Has a state be of another class."""

    def made(state):
        state.__class__ = kind

    return made


@dataclass(frozen=True)
class Ablation:
    """A clause left out, and where SGLang itself does not stand in for it."""

    plugin: type[LostSlots]
    modes: tuple[str, ...] = ("overlap", "normal")
    apply: object = field(default=None)
    #: Whether it is needed where a request has a record of its slots.
    new: bool = True
    #: What shows it.
    traffic: Traffic = USUAL
    #: Which of what must not happen has to; else any of it.
    shows: str = ""

    def __call__(self, state) -> None:
        (self.apply or become(self.plugin))(state)


ABLATIONS = {
    ablation.plugin.__name__: ablation
    for ablation in (
        Ablation(NoRetract),
        Ablation(NoDrop),
        Ablation(NoPassingOver, modes=("normal",)),
        Ablation(NoHold, modes=("overlap",)),
        Ablation(NoLeave),
        Ablation(NoLeaveInPause, modes=("overlap",), traffic=PAUSES),
        Ablation(NoPurge),
        Ablation(PurgeLostOnly, modes=("overlap",), traffic=ALIKE),
        Ablation(DirectHoldersOnly, modes=("overlap",), traffic=ALIKE),
        Ablation(NoWithhold),
        Ablation(NoParted, modes=("overlap",)),
        Ablation(NoWhole, traffic=SHORT_PROMPTS),
        Ablation(NoUnsay, new=False),
        Ablation(NoSpareChunk),
        Ablation(Abort),
        Ablation(NobodyPasses),
        Ablation(NoShow, apply=_no_show),
        Ablation(NoReset, apply=_no_reset),
        Ablation(NoRoom, new=False, traffic=PATIENT, shows="stuck"),
        Ablation(NoTurn),
        Ablation(NoForget),
    )
}
