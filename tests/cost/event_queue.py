"""A pipeline as a discrete-event simulation, written apart from the product to check it.

Devices and links are servers with first-in-first-out queues; a heap holds what happens next. The
order of ops is derived here from the published rules, one op at a time.
"""

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import count

Op = tuple[str, int, int]  # "F" or "B", micro-batch, chunk


def op_order(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int) -> list[Op]:
    """Returns what a stage runs.

    Warm-up: `num_warmup_microbatches` in NVIDIA/Megatron-LM,
    megatron/core/pipeline_parallel/schedules.py, is stages - stage - 1 without interleaving, and
    2 (stages - stage - 1) + (chunks - 1) stages with it.
    """
    total = micro_batches * chunks
    warm_up = {
        "gpipe": total,
        "1f1b": stages - stage - 1,
        "interleaved_1f1b": 2 * (stages - stage - 1) + (chunks - 1) * stages,
    }[schedule]
    next_of = {"F": [0] * chunks, "B": [0] * chunks}
    begun = {"F": 0, "B": 0}
    ops: list[Op] = []

    def run(kind: str) -> None:
        chunk = begun[kind] % (stages * chunks) // stages if chunks > 1 else 0
        chunk = chunk if kind == "F" else chunks - 1 - chunk
        ops.append((kind, next_of[kind][chunk], chunk))
        next_of[kind][chunk] += 1
        begun[kind] += 1

    while begun["F"] < min(warm_up, total):
        run("F")
    while begun["F"] < total:
        run("F")
        run("B")
    while begun["B"] < total:
        run("B")
    return ops


@dataclass
class Pipeline:
    """One plan under simulation; the times are nested lists [chunk][stage]."""

    schedule: str
    stages: int
    micro_batches: int
    chunks: int
    seconds: dict[str, list[list[float]]]  # duration of "F" and of "B"
    transfer: dict[str, list[list[float]]]  # of the message that an op sends
    blocking: float
    started: dict[tuple[int, Op], float] = field(default_factory=dict)
    ended: dict[tuple[int, Op], float] = field(default_factory=dict)

    def run(self) -> "Pipeline":
        """Returns itself after the last event, with when each op and device was done."""
        everyone = range(self.stages)
        self.todo = {
            s: deque(op_order(self.schedule, s, self.stages, self.micro_batches, self.chunks))
            for s in everyone
        }
        self.inbox: set[tuple[int, Op]] = set()
        self.idle = dict.fromkeys(everyone, True)
        self.free_since = dict.fromkeys(everyone, 0.0)
        self.transfer_wait = dict.fromkeys(everyone, 0.0)
        self.queue: dict[tuple[str, int], deque[tuple[float, int, Op]]] = defaultdict(deque)
        self.events: list[tuple[float, int, str, tuple]] = []
        self.tick = count()
        for stage in everyone:
            self.start_next(stage, 0.0)
        while self.events:
            now, _, what, arguments = heapq.heappop(self.events)
            getattr(self, what)(now, *arguments)
        assert not any(self.todo.values()), "the pipeline stopped before its end"
        return self

    def at(self, time: float, what: str, *arguments: object) -> None:
        """Puts an event on the heap; among equal times the first put is the first to happen."""
        heapq.heappush(self.events, (time, next(self.tick), what, arguments))

    def start_next(self, stage: int, now: float) -> None:
        """Starts the stage's next op if the stage is idle and the op's message is there."""
        if not self.idle[stage] or not self.todo[stage]:
            return
        kind, _, chunk = op = self.todo[stage][0]
        sender = self.neighbour(stage, chunk, -1 if kind == "F" else 1)
        if sender is not None and (stage, op) not in self.inbox:
            return
        self.todo[stage].popleft()
        self.idle[stage] = False
        self.started[stage, op] = now
        if sender is not None and sender[1] != stage:
            travel = self.transfer[kind][sender[0]][sender[1]]
            self.transfer_wait[stage] += min(now - self.free_since[stage], travel)
        self.at(now + self.seconds[kind][chunk][stage], "on_end", stage, op)

    def on_end(self, now: float, stage: int, op: Op) -> None:
        """Queues the op's message on its link and lets the stage go when it may."""
        kind, micro_batch, chunk = op
        self.ended[stage, op] = now
        receiver = self.neighbour(stage, chunk, 1 if kind == "F" else -1)
        blocked = 0.0
        if receiver is not None:
            message = (kind, micro_batch, receiver[0])
            travel = 0.0 if receiver[1] == stage else self.transfer[kind][chunk][stage]
            blocked = self.blocking * travel
            link = self.queue[kind, stage]
            link.append((travel, receiver[1], message))
            if len(link) == 1:
                self.at(now + travel, "on_arrival", kind, stage)
        self.at(now + blocked, "on_free", stage)

    def on_free(self, now: float, stage: int) -> None:
        """Makes the stage idle."""
        self.idle[stage], self.free_since[stage] = True, now
        self.start_next(stage, now)

    def on_arrival(self, now: float, kind: str, sender: int) -> None:
        """Delivers the first message of a link and sends the next one off."""
        link = self.queue[kind, sender]
        _, receiver, message = link.popleft()
        if link:
            self.at(now + link[0][0], "on_arrival", kind, sender)
        self.inbox.add((receiver, message))
        self.start_next(receiver, now)

    def neighbour(self, stage: int, chunk: int, step: int) -> tuple[int, int] | None:
        """Returns (chunk, stage) of the virtual stage before or after, or None at the ends."""
        if 0 <= stage + step < self.stages:
            return chunk, stage + step
        if 0 <= chunk + step < self.chunks:
            return chunk + step, (stage + step) % self.stages
        return None
