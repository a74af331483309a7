"""The plugin for SGLang with one clause left out, each in a class: every one of them must be caught."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field

from tidegate_engines.sglang.lost import LostSlots

#: Random runs of which at least one breaks when a clause is left out.
RUNS = 100


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


class NoRoom(LostSlots):
    """SGLang is not told that there may be room again."""

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
        Ablation(NoPurge),
        Ablation(PurgeLostOnly, modes=("overlap",)),
        Ablation(DirectHoldersOnly, modes=("overlap",)),
        Ablation(NoWithhold),
        Ablation(NoParted, modes=("overlap",)),
        Ablation(NoWhole),
        Ablation(NoUnsay, new=False),
        Ablation(NoSpareChunk),
        Ablation(Abort),
        Ablation(NoShow, apply=_no_show),
        Ablation(NoReset, apply=_no_reset),
        Ablation(NoRoom, new=False),
        Ablation(NoTurn),
        Ablation(NoForget),
    )
}
