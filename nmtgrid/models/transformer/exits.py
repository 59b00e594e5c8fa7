"""Early exits of a Transformer's decoder (chapter 5): training at every depth, halting steps.

`TransformerExits` adds a classifier after each block (tied or separate), the halting network, and
the teacher-forced passes of aligned and mixed training (section 5.2). `HaltingStep` is a decoding
step whose rows exit as soon as `Halt` decides so (section 5.3): each block runs only on the rows
that continue. For the blocks that a row skips, keys and values are projected from the state with
which it exited (section 5.2.1): together with those of the rows that continue or, once none does,
for all remaining blocks in one product. `benchmarks/exits.py` measures the savings.

`TransformerDrafts` drafts tokens at an exit and verifies them with the later blocks
(search/verified.py). Drafting runs the blocks up to the exit, token by token; verifying runs the
later blocks over all drafted tokens of all rows at once. Both share keys and values, so no block
runs twice for a token. Rows keep different numbers of drafts: see `DraftKVCache`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.rows import take
from nmtgrid.data.batches import Batch
from nmtgrid.layers.kernels.linear import Projection, linear, working_dtype
from nmtgrid.layers.normalisation import PositionNorm
from nmtgrid.layers.source_cache import SourceCache, without_lead
from nmtgrid.layers.transformer.blocks import DecoderBlock, NewestTokens
from nmtgrid.layers.transformer.early_exit import LazySourceCache
from nmtgrid.layers.transformer.kv_cache import COLUMNS, DraftKVCache
from nmtgrid.models.api import (
    Classifier,
    Drafts,
    Halt,
    PredictionSites,
    Step,
    Verified,
    check_depth,
    depths_of,
)
from nmtgrid.models.transformer.source import TransformerSource, TransformerState, narrowed


class TransformerExits(TransformerSource):
    """The exits of a Transformer; the subclass sets the attributes declared here."""

    decoder_norm: nn.Module

    def make_exits(self, types: int) -> None:
        """Add the parts of exits: classifiers before the last one, and the halting network."""
        config, blocks = self.config, len(self.decoder)
        # The last classifier is the model's own; the lists have the N - 1 before it, or none if
        # exits are tied.
        own = blocks - 1 if config.exits == "separate" else 0
        normed = own if config.norm == "pre" else 0
        self.exit_weights = nn.ParameterList(
            torch.empty(types, config.size).normal_() * config.size**-0.5 for _ in range(own)
        )
        self.exit_biases = nn.ParameterList(
            torch.zeros(types) for _ in range(own if config.output_bias else 0)
        )
        self.exit_norms = nn.ModuleList(PositionNorm(config.size) for _ in range(normed))
        self.halting_map = None
        if config.halting != "none":
            width = config.source_size if config.halting == "sequence" else config.size
            classes = 1 if config.halting == "geometric" else blocks
            self.halting_map = Projection.xavier(width, classes)

    def classifier(self, exit: int | None = None) -> Classifier:
        """Return the output map of `exit` (None: the last).

        The last is tied to the target embeddings unless `tie` is none; tied exits all share it.
        """
        if exit is not None and exit <= len(self.exit_weights):
            biases = self.exit_biases
            bias = biases[exit - 1] if len(biases) else None
            return Classifier(self.exit_weights[exit - 1], bias)
        return super().classifier()

    def output_projections(self) -> list[Tensor]:
        halting = [] if self.halting_map is None else [self.halting_map.weight]
        return [*super().output_projections(), *halting]

    def classify(self, features: Tensor, exit: int | None = None) -> Tensor:
        classifier = self.classifier(exit)
        return linear(features, classifier.weight, classifier.bias)

    def features_at_depth(self, batch: Batch, sites: PredictionSites) -> Tensor:
        """Return the states [M, D] at the sites' exits, normalised for their classifiers.

        Raises ValueError for exits that do not exist, and for two exits at one position of mixed
        sites.
        """
        assert sites.depth is not None
        blocks = self.traits.num_exits
        if blocks == 1:
            raise self.no_exits()
        check_depth(sites, blocks)
        memory = self._memory_for(batch, sites)
        features = narrowed(self.target_embedding(batch.target_input))
        cells = sites.sentence * features.shape[1] + sites.position
        depths = depths_of(batch, sites, blocks)[..., None] if sites.mixed else None
        collected = features.new_empty(len(sites), features.shape[2])
        for number, block in enumerate(self.decoder):
            following = block(features, memory)
            if depths is not None:
                # Positions that have exited keep their state, so every later block sees a copy.
                following = torch.where(depths > number, following, features)
            features = following
            leaves_here = (sites.depth == number + 1).nonzero()[:, 0]
            if len(leaves_here):
                leaving = features.flatten(0, 1).index_select(0, cells.index_select(0, leaves_here))
                collected = collected.index_copy(0, leaves_here, self.normed(leaving, number + 1))
            elif depths is None and not bool((sites.depth > number).any()):
                break  # aligned sites: none has a deeper exit, so no deeper block runs
        return collected

    def exit_features(
        self,
        batch: Batch,
        sites: PredictionSites,
        *,
        own: bool = False,
        scales: Sequence[float] | None = None,
    ) -> list[Tensor]:
        if self.traits.num_exits == 1:
            raise self.no_exits()
        encoded, limited = self._read_for(batch, sites)
        memory = limited(self._remember(encoded))
        # The second memory's gradient reaches the projection of keys and values, which belongs to
        # the blocks, but not the encoder.
        detached = limited(self._remember(encoded.detached())) if own else memory
        features = narrowed(self.target_embedding(batch.target_input))
        cells = sites.sentence * features.shape[1] + sites.position
        devices = [features.device] if features.is_cuda else []
        shared, owned = [], []
        for exit, block in enumerate(self.decoder, start=1):
            # With `own` the block runs twice, with the same dropout for identical values.
            with torch.random.fork_rng(devices, enabled=own):
                following = block(features, memory)
            if own:
                alone = block(features.detach(), detached).flatten(0, 1).index_select(0, cells)
                owned.append(self.normed(alone, exit, learns=False))
            # Algorithm 2: gamma_n before the exit, 1 / gamma_{n+1} on the way to the next block.
            features = following if scales is None else _scaled(following, scales[exit - 1])
            shared.append(self.normed(features.flatten(0, 1).index_select(0, cells), exit))
            if scales is not None and exit < len(self.decoder):
                features = _scaled(features, 1 / scales[exit])
        return shared + owned

    def halting_logits(self, batch: Batch, states: Sequence[Tensor]) -> Tensor:
        if self.halting_map is None:
            raise ConfigError(
                "This model has no halting network, which decides when to exit.",
                "Fine-tune it with `--set model.halting=geometric` (or multinomial, sequence) and "
                "`--objective exits-halting`.",
            )
        if self.config.halting == "sequence":
            return self._source_logits(batch.encode_source(self._encode))
        if self.config.halting == "multinomial":
            logits: Tensor = self.halting_map(states[0])
            return logits
        return torch.cat([self.halting_map(state) for state in states[:-1]], 1)

    def counterparts(self) -> dict[str, str | None]:
        """Return the parts of the last exit as counterparts of exits that the weights may lack."""
        tied = "target_embedding.weight"
        last = "output_weight" if self.output_weight is not None else tied
        others = {"exit_weights": last, "exit_biases": "output_bias", "halting_map": None}
        counterparts: dict[str, str | None] = {}
        for name in self.state_dict():
            part, _, rest = name.partition(".")
            if part in others:
                counterparts[name] = others[part]
            elif part == "exit_norms":
                counterparts[name] = "decoder_norm." + rest.partition(".")[2]
        return counterparts

    def check_halt(self, halt: Halt, *, has_whole_source: bool = True) -> None:
        halting = self.traits.halting
        if self.traits.num_exits == 1:
            raise self.no_exits()
        if halt.needs not in ("nothing", "confidence", halting):
            has = "has no halting network" if halting == "none" else f"exits by `{halting}`"
            raise ConfigError(
                f"This model {has}, so it cannot be stopped by `{halt.needs}`.",
                f"Fine-tune it with `--set model.halting={halt.needs} --objective exits-halting`.",
            )
        if halt.needs == "sequence" and not has_whole_source:
            raise ConfigError(
                "Sequence-specific exits are chosen from the whole source, which is not available "
                "in simultaneous decoding.",
                "Decode offline, or stop by `geometric` or `multinomial`, by thresholds of "
                "confidence, or at a fixed exit.",
            )

    def sentence_exits(self, state: TransformerState) -> Tensor:
        assert state.sentence_exits is not None, "halting is sequence, and the source is whole"
        return state.sentence_exits

    def drafts(self, state: TransformerState, verified: Verified, align: bool) -> Drafts:
        assert state.memory is not None, "streams write token by token"
        return TransformerDrafts(self, state.memory, verified, align)

    def normed(self, features: Tensor, exit: int, *, learns: bool = True) -> Tensor:
        """Return features [M, D] of block `exit`, normalised for its classifier.

        Without `learns` the norm's own parameters have no gradient.
        """
        is_own = exit <= len(self.exit_norms)
        norm = self.exit_norms[exit - 1] if is_own else self.decoder_norm
        if learns or not isinstance(norm, PositionNorm):
            normalised: Tensor = norm(features)
            return normalised
        # The norm belongs to the exit, not to the block whose own gradient this is.
        parameters = {name: value.detach() for name, value in norm.named_parameters()}
        normalised = torch.func.functional_call(norm, parameters, (features,))
        return normalised

    def halting(self, features: Tensor, exit: int) -> Tensor:
        """Return the halting network's logits for states [R, D] of block `exit`.

        Eq. (5.19): [R, N], from the first block; Eq. (5.20): [R, 1].
        """
        assert self.halting_map is not None
        logits: Tensor = self.halting_map(self.normed(features, exit))
        return logits

    def classify_exits(self, features: Tensor, exits: Tensor) -> Tensor:
        """Return logits [R, V] for states [R, D] that exited at `exits` [R]."""
        if not len(self.exit_weights):
            return self.classify(self.normed(features, len(self.decoder)))
        collected: Tensor | None = None
        for exit in range(1, len(self.decoder) + 1):
            rows = (exits == exit).nonzero()[:, 0]
            if len(rows):
                leaving = self.normed(features.index_select(0, rows), exit)
                logits = self.classify(leaving, exit)
                if collected is None:
                    collected = logits.new_empty(len(exits), logits.shape[1])
                collected = collected.index_copy_(0, rows, logits)
        assert collected is not None
        return collected


def _scaled(features: Tensor, factor: float) -> Tensor:
    """Return `features` with their gradient multiplied by `factor`. Algorithm 2."""
    return features * factor + features.detach() * (1.0 - factor)


class HaltingStep:
    """A decoding step in progress: the rows that continue, and the results of those that exited."""

    def __init__(
        self,
        model: TransformerExits,
        halt: Halt,
        features: Tensor,
        state: TransformerState,
        memory: SourceCache,
        align: bool,
    ) -> None:
        """`features` [R, D] are the embedded tokens, `memory` is the source that rows may read."""
        self.model, self.halt, self.state, self.memory = model, halt, state, memory
        self.features, self.is_aligned = features, align
        self.predicted_exits, self.depth = state.sentence_exits, len(model.decoder)
        self.all_rows = torch.arange(len(features), device=features.device)
        self.rows: Tensor | None = None
        """The rows [R'] that continue; None: all."""
        self.exits: Tensor | None = None
        """The exits [R], for rows that continue the next block; None before any row has exited."""
        self.logits: Tensor | None = None
        self.shares: Tensor | None = None
        self.scores: Tensor | None = None
        if halt.needs in ("confidence", "geometric"):
            shape = (len(features), self.depth)
            self.scores = torch.full(shape, torch.nan, device=features.device)

    def run(self) -> Step:
        for exit, block in enumerate(self.model.decoder, start=1):
            assert isinstance(block, DecoderBlock)
            running = self._run_block(block, exit)
            if exit == self.depth or not self._let_rows_leave(running, exit):
                break
        self.state.cache.advance()
        # With thresholds on confidence all states have already been classified; otherwise each row
        # is classified once, at its exit.
        logits, shares, exits = self.logits, self.shares, self.exits
        if exits is None:
            # All rows exited together, the usual case near the end of a search: nothing to gather.
            exits = torch.full_like(self.all_rows, exit)
            if logits is None:
                logits = self.model.classify(self.model.normed(self.features, exit), exit)
        elif logits is None:
            logits = self.model.classify_exits(self.features, exits)
        if shares is not None:
            if self.model.config.alignment == "mean":
                shares = shares / exits[:, None]
            shares = without_lead(shares, self.memory.lead)
        return Step(logits, self.state, shares, exits, self.scores)

    def _run_block(self, block: DecoderBlock, exit: int) -> Tensor:
        """Run block `exit` on the rows that continue and return their states [R', D]."""
        weights: list[Tensor] | None = [] if self.is_aligned else None
        cache, rows = self.state.cache, self.rows
        if rows is None:
            running = self.features = block.step(self.features, cache, self.memory, weights)
        else:
            assert self.state.maps is not None
            maps = self.state.maps.of(exit - 1)
            running = block.step(self.features, cache, self.memory, weights, rows, maps)
            # In place in a search; with gradients, as in tests, autograd needs the old values.
            copied = self.features.clone() if torch.is_grad_enabled() else self.features
            self.features = copied.index_copy_(0, rows, running)
        if weights is not None:
            self._add_shares(weights[0])
        if self.halt.needs == "confidence":
            logits = self.model.classify(self.model.normed(running, exit), exit)
            if self.rows is None or self.logits is None:
                self.logits = logits
            else:
                self.logits.index_copy_(0, self.rows, logits)
            # The confidence of the prediction, Eq. (5.18).
            self._record(logits.float().log_softmax(1).amax(1).exp(), exit)
        return running

    def _let_rows_leave(self, running: Tensor, exit: int) -> bool:
        """Let rows exit after block `exit`; return False if none continues."""
        rows = self.all_rows if self.rows is None else self.rows
        scores = self._scores(running, exit)
        going = (~self.halt.exits(exit, self.state.cache.filled, rows, scores)).nonzero()[:, 0]
        if not len(going):
            # No row reaches the later blocks: their keys and values are filled in at once.
            assert self.state.maps is not None
            self.state.maps.copy(self.features, self.state.cache, exit)
            return False
        # Only when rows exit: while all continue, `rows` stays None and nothing is indexed.
        if len(going) < len(rows):
            rows = self.rows = rows.index_select(0, going)
            if self.exits is None:
                self.exits = torch.full_like(self.all_rows, exit)
        if self.exits is not None:
            self.exits.index_fill_(0, rows, exit + 1)
        return True

    def _scores(self, running: Tensor, exit: int) -> Tensor | None:
        needs = self.halt.needs
        if needs == "nothing":
            return None
        if needs in ("multinomial", "sequence"):
            if needs == "multinomial" and exit == 1:
                # (5.19) decides once, from the first block's states, for the whole token.
                self.predicted_exits = self.model.halting(running, 1).argmax(1) + 1
            exits = self.predicted_exits
            assert exits is not None
            return exits if self.rows is None else exits.index_select(0, self.rows)
        if needs == "geometric":
            self._record(self.model.halting(running, exit).float().sigmoid()[:, 0], exit)
        assert self.scores is not None
        scores = self.scores[:, exit - 1]
        return scores if self.rows is None else scores.index_select(0, self.rows)

    def _record(self, scores: Tensor, exit: int) -> None:
        """Store the scores [R'] of the rows that continue."""
        assert self.scores is not None
        if self.rows is None:
            self.scores[:, exit - 1] = scores
        else:
            self.scores[:, exit - 1].index_copy_(0, self.rows, scores)

    def _add_shares(self, shares: Tensor) -> None:
        """Store the attention [R', S] of a block: of the last that runs, or the sum of all."""
        # "last" overwrites a row's attention as long as the row runs; "mean" sums it, and divides
        # by the row's exit at the end.
        if self.rows is None or self.shares is None:
            is_first = self.shares is None or self.model.config.alignment == "last"
            self.shares = shares if is_first or self.shares is None else self.shares + shares
        elif self.model.config.alignment == "last":
            self.shares = self.shares.index_copy(0, self.rows, shares)
        else:
            self.shares = self.shares.index_add(0, self.rows, shares)


class TransformerDrafts:
    """The caches of rows with drafted tokens; see `models.api.Drafts`."""

    def __init__(
        self, model: TransformerExits, memory: SourceCache, verified: Verified, align: bool
    ) -> None:
        """`memory` is the source that the rows, one per sentence, may read."""
        self.model, self.exit = model, verified.exit
        self.embedding = model.target_embedding
        self.blocks = [block for block in model.decoder if isinstance(block, DecoderBlock)]
        self.memory = memory
        if self.embedding.weight.device.type == "cpu" and isinstance(memory, LazySourceCache):
            self.memory = memory.with_columns(COLUMNS)
        self.cache = DraftKVCache(len(self.blocks))
        self.is_aligned = align
        self.takes_mean = align and model.config.alignment == "mean"
        classifier, types = model.classifier(self.exit), verified.types
        # Converted once: autocast would convert a slice of a matrix at every step.
        dtype = working_dtype(classifier.weight)
        bias = None if classifier.bias is None else classifier.bias[:types].to(dtype)
        self.classifier = Classifier(classifier.weight[:types].to(dtype), bias)
        self._fed: list[Tensor] = []
        self._shares: list[Tensor] = []

    def feed(self, tokens: Tensor, positions: Tensor, last: int, *, predict: bool) -> Tensor | None:
        features = narrowed(self.embedding.at(tokens, positions, last))
        weights: list[Tensor] | None = [] if self.takes_mean else None
        for block in self.blocks[: self.exit]:
            features = block.step(features, self.cache, self.memory, weights)
        self.cache.advance()
        self._fed.append(features)
        if weights:
            self._shares.append(torch.stack(weights).sum(0))
        if not predict:
            return None
        normed = self.model.normed(features, self.exit)
        return linear(normed, self.classifier.weight, self.classifier.bias)

    def verify(self, cells: Tensor) -> tuple[Tensor, Tensor | None]:
        fed = torch.stack(self._fed, 1)
        (rows, count), features = fed.shape[:2], fed.flatten(0, 1)
        indices: Tensor | None = None
        if len(cells) < len(features):
            indices = cells
            features = features.index_select(0, indices)
        newest = NewestTokens(rows, indices, self.cache.mask_of(count))
        weights: list[Tensor] | None = [] if self.is_aligned else None
        for block in self.blocks[self.exit :]:
            features = block.step_several(features, self.cache, self.memory, newest, weights)
        logits = self.model.classify(self.model.normed(features, len(self.blocks)))
        return logits, None if weights is None else self._alignment(weights)

    def keep(self, kept: Tensor) -> None:
        self.cache.keep(kept, len(self._fed))
        self._fed, self._shares = [], []

    def take_rows(self, rows: Tensor) -> None:
        self.cache, self.memory = take(self.cache, rows), take(self.memory, rows)

    def _alignment(self, weights: list[Tensor]) -> Tensor:
        """Return the alignments [R, Q, S] that steps through all blocks would return."""
        shares = weights[-1]
        if self.takes_mean:
            drafted = torch.stack(self._shares, 1)
            shares = (torch.stack(weights).sum(0) + drafted) / len(self.blocks)
        return without_lead(shares, self.memory.lead)
