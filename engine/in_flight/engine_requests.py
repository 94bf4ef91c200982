"""The engine's own requests: prefixes to pin, answers to check, and prompt modules to compute.

They run like clients' requests. The check of an answer is cancelled if another request waits.
"""

from __future__ import annotations

from engine.components import Components
from engine.in_flight.clients import Clients
from engine.in_flight.inbox import Inbox
from engine.sentinel.sentinel import Load
from engine.sequences.pins import OURSELVES


class EngineRequests:
    """The engine's own requests, begun and cancelled once in each iteration of the loop."""

    def __init__(self, components: Components, clients: Clients, inbox: Inbox) -> None:
        self._scheduler = components.scheduler
        self._settler = components.settler
        self._pins = components.pins
        self._sentinel = components.sentinel
        self._modules = components.modules
        self._clock = components.clock
        self._clients = clients
        self._inbox = inbox

    def turn(self) -> None:
        """Accept the engine's requests that are due, and cancel those that are no longer needed."""
        self._warm_pins()
        self._check_answers()
        self._compute_modules()

    def _warm_pins(self) -> None:
        if not self._inbox.is_draining:
            for request in self._pins.due(self._clock()):
                self._inbox.accept(OURSELVES, request)

    def _check_answers(self) -> None:
        sentinel, now = self._sentinel, self._clock()
        if sentinel.running is not None:
            running = self._clients.find(OURSELVES, sentinel.running)
            waiting = (*self._scheduler.queue, *self._scheduler.loading)
            if self._inbox.is_draining or any(one is not running for one in waiting):
                self._inbox.cancel_own(sentinel.give_way())
        elif sentinel.has_one and not self._inbox.is_draining:
            waiting_now = len(self._scheduler.queue) + len(self._scheduler.loading)
            request = sentinel.due(Load(len(self._clients.alive), waiting_now), now)
            if request is not None:
                self._inbox.accept(OURSELVES, request)

    def _compute_modules(self) -> None:
        turn = self._modules.turn(self._clients.alive, self._clock())
        for request in turn.started:
            self._inbox.accept(OURSELVES, request, is_module=True)
        for request_id in turn.cancelled:
            self._inbox.cancel_own(request_id)
        now = self._clock()
        self._clients.post([self._settler.fail(one, error, now) for one, error in turn.failed])
