"""The requests of a loop that have not ended: their sequences and their output."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from hybridge.artifact.errors import EngineError, RequestError, described
from hybridge.runtime.blocks.records import changes
from hybridge.runtime.engines.hidden_rows import HiddenRows
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.generation import ANY_TOKEN
from hybridge.runtime.sampling import DrawError, Sampler, TokenSampling
from hybridge.runtime.scheduler import ScheduledSequence, Scheduler, StepPlan
from hybridge.runtime.serving.beam import BeamGroup
from hybridge.runtime.serving.draft_outcome import NO_LOGITS
from hybridge.runtime.serving.group import Group, GroupContext, MakePiece, SamplingGroup
from hybridge.runtime.serving.request import Output, ServingRequest
from hybridge.runtime.serving.step_in_flight import Continuation
from hybridge.runtime.text import Tokenizer


class LiveRequests:
    """A request lives from ``add`` until its last sequence has ended; ``take`` returns its new output.

    Tokens are chosen at once; their pieces are made later, by ``make_pieces``.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        eos: tuple[int, ...],
        tokenizer: Tokenizer | None,
        forget: Callable[[int], None],
        forked: Callable[[int, int], None],
    ) -> None:
        """``forget`` is called with the id of each sequence that has ended, ``forked`` with those of one that is forked
        and of the new one."""
        self._scheduler, self._eos, self._tokenizer, self._forget_sequence = scheduler, eos, tokenizer, forget
        self.records = scheduler.records
        self._forked = forked
        self._groups: dict[int, Group] = {}
        self._request_of: dict[ScheduledSequence, int] = {}
        # Sampled tokens without pieces yet, and outputs that have not been returned.
        self._unmade: list[tuple[int, list[MakePiece]]] = []
        self._outputs: list[Output] = []
        self._next_request = 0

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._groups

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def has_pending_output(self) -> bool:
        """Whether ``take`` has output, or will have once the pieces are made."""
        return bool(self._outputs or self._unmade)

    @changes
    def add(self, submitted: ServingRequest, started: float) -> int:
        """Add a request that arrived at ``started`` (time.perf_counter); returns its id. Errors as in Scheduler.add."""
        id_ = self._next_request
        root = self._scheduler.add(submitted.scheduled())
        self._next_request += 1
        self._request_of[root] = id_
        context = GroupContext(self._fork, self._finish, self._eos, self._tokenizer, started)
        kind = BeamGroup if submitted.request.params.beam_width else SamplingGroup
        self._groups[id_] = kind(submitted, root, context)
        return id_

    def of(self, sequence: ScheduledSequence) -> tuple[int, Group] | None:
        """The request of a sequence; None where it has ended, perhaps during the sequence's current step."""
        id_ = self._request_of.get(sequence)
        return None if id_ is None else (id_, self._groups[id_])

    def ids_of(self, sequences: Iterable[ScheduledSequence]) -> list[int]:
        """The requests of ``sequences`` that have not ended, each once."""
        known = self._request_of
        return list(dict.fromkeys(known[sequence] for sequence in sequences if sequence in known))

    def finished(self) -> list[int]:
        """Requests whose last sequence has ended; only an interrupt leaves any."""
        return [id_ for id_, group in self._groups.items() if group.finished]

    def samplers(self, sampling: Iterable[tuple[ScheduledSequence, int]]) -> dict[int, Sampler]:
        """The samplers of the sequences of ``sampling`` whose token a step can sample, by index of their logits."""
        found = ((index, self._sampler(sequence)) for sequence, index in sampling)
        return {index: sampler for index, sampler in found if sampler is not None}

    def all_samplers(self, sampling: Iterable[ScheduledSequence]) -> list[Sampler]:
        """The samplers of those sequences of ``sampling`` that have one."""
        return [sampler for sampler in map(self._sampler, sampling) if sampler is not None]

    def _sampler(self, sequence: ScheduledSequence) -> Sampler | None:
        """What chooses the next token of ``sequence``, unless that is the likeliest."""
        known = self.of(sequence)
        return None if known is None or known[1].takes_best else known[1].sampler(sequence)

    def continuations(
        self,
        sampling: Iterable[tuple[ScheduledSequence, int]],
        samplings: Mapping[int, TokenSampling],
        masked: Container[int],
    ) -> dict[ScheduledSequence, Continuation] | None:
        """How the sequences of ``sampling``, which get the tokens at these indices, go on; without those that end.

        None if it is not known which tokens end one. A stop string may end others, after the next step has fed the
        token that completed it. samplings: those of the step, ``masked`` aside: indices whose masks follow.
        """
        request_of, groups, found = self._request_of, self._groups, {}
        for sequence, index in sampling:
            id_ = request_of.get(sequence)
            if id_ is None:
                continue
            stops, waits = groups[id_].next_stops(sequence), index in masked
            how = None if waits else samplings.get(index)
            if how is not None:
                how = how.following()
            if stops is None or not (how is not None or waits or groups[id_].takes_best):
                return None
            if stops is not ANY_TOKEN:
                found[sequence] = Continuation(index, stops, how, waits)
        return found

    def accept(
        self,
        sampling: Iterable[tuple[ScheduledSequence, int]],
        result: StepResult,
        best: Sequence[int | None],
        samplings: Mapping[int, TokenSampling],
    ) -> None:
        """Give each sequence the token that the step sampled at its index, or its logits to choose one; on an error end
        its request. samplings: those of the step."""
        self.make_pieces()  # where an interrupt has left any
        request_of, groups = self._request_of, self._groups
        others: list[tuple[ScheduledSequence, int]] = []
        for sequence, index in sampling:
            id_ = request_of.get(sequence)
            if id_ is None:
                continue  # its request has ended in this very step
            group, token = groups[id_], best[index]
            if token is None or not group.takes_best:
                others.append((sequence, index))
                continue
            try:
                # Looked up in each iteration: an error makes the pieces so far and begins another list.
                if makers := group.accept(sequence, NO_LOGITS, token):
                    self._unmade.append((id_, makers))
            except Exception as error:
                self._broken(id_, error)
                continue
            if group.finished:
                del groups[id_]
        if others:
            self._accept_sampled(others, result, best, samplings)

    def read_prompts(self, plan: StepPlan, result: StepResult) -> None:
        """Give each request the logits of its prompt that it asks for, or end it with an error."""
        for row, begin in zip(plan.rows, plan.logits_starts(), strict=True):
            sequence = self._scheduler.sequences.get(row.sequence)
            known = None if sequence is None or not row.prompt_logits else self.of(sequence)
            if known is None:
                continue
            id_, group = known
            try:
                group.read_prompt(result.rows(range(begin, begin + row.prompt_logits)))
            except Exception as error:
                self._broken(id_, error)

    def read_hidden(self, plan: StepPlan, hidden: HiddenRows) -> None:
        """Give the hidden states of the prompt's tokens to each request that needs them."""
        first = hidden.first
        for row in plan.rows:
            sequence = self._scheduler.sequences.get(row.sequence)
            known = None if sequence is None else self.of(sequence)
            pooling = None if known is None else known[1].pooling
            if pooling is not None:
                pooling.add(row.start, hidden.read(range(first, first + row.new_tokens)))
            first += row.new_tokens

    def _accept_sampled(
        self,
        sampling: Sequence[tuple[ScheduledSequence, int]],
        result: StepResult,
        best: Sequence[int | None],
        samplings: Mapping[int, TokenSampling],
    ) -> None:
        """``accept`` for sequences that sample or need logits; all logits are read in one call."""
        try:
            sampled = result.sampled({index: samplings[index] for _, index in sampling if index in samplings})
            others = [index for _, index in sampling if index not in samplings]
            logits = dict(zip(others, result.rows(others), strict=True)) if others else {}
        except Exception as error:
            self.end_with(self.ids_of(sequence for sequence, _ in sampling), choice_error(error))
            return
        for sequence, index in sampling:
            id_ = self._request_of.get(sequence)
            if id_ is None:
                continue  # it ended with another of its sequences
            group = self._groups[id_]
            try:
                if index in logits:
                    chosen = group.accept(sequence, logits[index], best[index])
                elif isinstance(token := sampled[index], (EngineError, RequestError)):
                    raise token
                else:
                    chosen = group.take(sequence, token)
                self._unmade.append((id_, chosen))
            except Exception as error:
                self._broken(id_, error)
                continue
            self.drop_finished(id_)

    def _broken(self, request_id: int, error: Exception) -> None:
        self.end_with((request_id,), choice_error(error))

    def tell(self, request_id: int, pieces: Iterable[MakePiece]) -> None:
        """Make pieces of a request now, because its next token is chosen in the same step."""
        self._outputs += [Output(request_id, make()) for make in pieces]

    def make_pieces(self) -> None:
        """Make the pieces of all chosen tokens."""
        if not self._unmade:
            return
        unmade, self._unmade = self._unmade, []
        outputs = self._outputs
        failed: set[int] = set()
        for place, (id_, makers) in enumerate(unmade):
            if id_ in failed:
                continue
            try:
                for make in makers:
                    outputs.append(Output(id_, make()))
            except Exception as error:
                failed.add(id_)
                self._end(id_)
                outputs.append(Output(id_, error=engine_error(error, "the text of a token could not be made")))
            except BaseException:
                # An interrupt: text without these pieces would be wrong.
                for other in dict.fromkeys(other for other, _ in unmade[place:] if other not in failed):
                    self._end(other)
                    outputs.append(Output(other, error=EngineError("the step was interrupted")))
                raise

    def take(self) -> list[Output]:
        """The output of the requests since the last call, in order."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def cancel(self, request_id: int) -> None:
        """End a request without further output. Finished or unknown ids are ignored."""
        self._end(request_id)
        if self.has_pending_output:
            self._outputs = [output for output in self._outputs if output.request_id != request_id]
            self._unmade = [unmade for unmade in self._unmade if unmade[0] != request_id]

    def end_with(self, requests: Iterable[int], error: DrawError) -> None:
        """End requests, which get the pieces that they have so far, and then ``error``."""
        self.make_pieces()
        for id_ in requests:
            # In this order, so that after an interrupt no request waits for its end.
            self._outputs.append(Output(id_, error=error))
            self._end(id_)

    @changes
    def start_over(self, sequences: Sequence[ScheduledSequence], error: EngineError) -> None:
        """End all requests with ``error``; ``sequences`` are all that the scheduler had."""
        self.make_pieces()
        told = {output.request_id for output in self._outputs if output.error is not None}
        self._outputs += [Output(id_, error=error) for id_ in self._groups if id_ not in told]
        self._groups.clear()
        known = {sequence.id: None for sequence in (*sequences, *self._request_of)}
        self._request_of.clear()
        for id_ in known:
            self._forget_sequence(id_)

    @changes
    def died(self, sequences: Sequence[ScheduledSequence], error: EngineError) -> None:
        """End the requests of ``sequences``, whose memory the scheduler has released, with ``error``."""
        requests = self.ids_of(sequences)
        for sequence in sequences:
            self._forget(sequence)
        self.end_with(requests, error)

    def drop_finished(self, request_id: int) -> None:
        """Forget a request if its last sequence has ended."""
        if self._groups[request_id].finished:
            del self._groups[request_id]

    @changes
    def _end(self, request_id: int) -> None:
        if self._groups.pop(request_id, None) is not None:
            # Not only those that its group knows: an interrupt may have come between their fork or end and its record.
            for sequence in [each for each, known in self._request_of.items() if known == request_id]:
                self._finish(sequence)

    @changes
    def _fork(self, parent: ScheduledSequence) -> ScheduledSequence:
        child = self._scheduler.fork(parent)
        self._request_of[child] = self._request_of[parent]
        self._forked(parent.id, child.id)
        return child

    @changes
    def _finish(self, sequence: ScheduledSequence) -> None:
        self._scheduler.finish(sequence)
        self._forget(sequence)

    def _forget(self, sequence: ScheduledSequence) -> None:
        self._request_of.pop(sequence, None)
        self._forget_sequence(sequence.id)


def engine_error(error: BaseException, what: str) -> EngineError:
    """``error`` itself if it is an EngineError, else one that says ``what``, with its type and message."""
    return error if isinstance(error, EngineError) else EngineError(f"{what}: {described(error)}")


def choice_error(error: Exception) -> DrawError:
    """The error of a request whose next token could not be chosen; unchanged if the request is at fault."""
    return error if isinstance(error, RequestError) else engine_error(error, "the next token could not be chosen")
