"""Calls of a user's reward function: in the signature it has, with a time limit, with the place of what goes wrong."""

from __future__ import annotations

import asyncio
import copy
import ctypes
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

from sdpo.errors import ConfigError
from sdpo.grading import user_code
from sdpo.records import Prompt

REACTION = 0.2  # seconds in which a loop of Python notices that it is to end
LIMIT = "custom_reward_function.max_seconds"
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
VERL_BATCH = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
TRL = ("prompts", "completions")


class CustomFault(Exception):
    """The function raised, took too long, or returned something that is no reward: a fault of the grader."""


class RewardCall:
    """One function with the arguments it takes: verl's (one answer, or lists of answers) or TRL's (lists of prompts,
    completions and columns). Thread-safe.

    Raises ConfigError for a function that no answer can be given to. `strict`: a function that changes its row, which
    is a copy, has a fault as well.
    """

    def __init__(
        self, function: Callable[..., Any], name: str, given: dict[str, Any], max_seconds: float, strict: bool = False
    ) -> None:
        self.name, self.given, self.max_seconds, self.strict = name, given, max_seconds, strict
        self._function = function
        code = user_code.code_of(function)
        self._folder = Path(code.co_filename).parent if code else Path("/nowhere")
        self.at = user_code.place(code.co_filename, code.co_firstlineno) if code else name
        self._code = code
        if isinstance(function, type):
            raise ConfigError(f"{name} is a class; name a function, or an object of the class that can be called")
        self._names, self._required, self._takes_all = _parameters(function)
        self.kind = self._signature()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._partners = threading.local()
        self._threads: list[_Partner] = []
        self._lock = threading.Lock()

    def _signature(self) -> tuple[str, ...]:
        for kind in (TRL, VERL_BATCH, VERL):
            if self._names & set(kind):
                break
        else:
            if not self._takes_all:
                raise ConfigError(f"{self.at}: takes {self._told(self._names)}; {_ALLOWED}")
            kind = VERL
        unknown = self._required - set(kind) - set(self.given)
        if unknown and kind is not TRL:
            fix = "give it a default, or a value in custom_reward_function.reward_kwargs"
            raise ConfigError(f"{self.at}: takes {self._told(unknown)} too, which nobody gives; {fix}")
        return kind

    @staticmethod
    def _told(names: Iterable[str]) -> str:
        return ", ".join(sorted(names)) or "nothing"

    def missing(self, prompt: Prompt) -> str | None:
        """Which column a function of TRL's signature asks for and the row does not have; None when all are there."""
        if self.kind is not TRL:
            return None
        columns = _columns(prompt)
        missing = self._required - set(TRL) - {"trainer_state"} - set(columns) - set(self.given)
        if not missing:
            return None
        return f"{self.at}: takes {self._told(missing)}, and the row has {self._told(columns)}"

    def __call__(self, prompt: Prompt, answer: str, truncated: bool) -> Any:
        """What the function returns for the answer, one of a list taken out. Raises CustomFault."""
        if missing := self.missing(prompt):
            raise CustomFault(missing)
        given = self._arguments(prompt, answer, truncated)
        before = copy.deepcopy(given) if self.strict else None
        result = self._run(lambda: self._function(**given))
        if before is not None and (changed := [name for name in given if not _same(given[name], before[name])]):
            where = self._traced(before, changed[0]) or self.at
            raise CustomFault(f"{where}: changes its argument {changed[0]}, which belongs to the row; change a copy")
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise CustomFault(f"{self.at}: is a generator: it yields, where it should return")
        return result if self.kind is VERL else self._only(result, prompt, answer, truncated)

    def _only(self, result: Any, prompt: Prompt, answer: str, truncated: bool) -> Any:
        try:
            values = None if isinstance(result, str | dict) else list(result)
        except TypeError:
            values = None
        if values is None or len(values) != 1:
            got = f"{len(values)} rewards" if values is not None else f"{result!r:.60}"
            where = self.place_of_return(prompt, answer, truncated)
            raise CustomFault(f"{where}: returned {got} for a list of one answer; allowed: a list of one number")
        return values[0]

    def place_of_return(self, prompt: Prompt, answer: str, truncated: bool) -> str:
        """The line that returned something wrong: found by a second call."""
        return self._traced(self._arguments(prompt, answer, truncated)) or self.at

    def _arguments(self, prompt: Prompt, answer: str, truncated: bool) -> dict[str, Any]:
        row = {"data_source": prompt.data_source, "ground_truth": copy.deepcopy(prompt.ground_truth)}
        extra = copy.deepcopy(prompt.extra_info) | {"truncated": truncated, "uid": prompt.uid}
        if self.kind is TRL:
            messages = [dict(message) for message in copy.deepcopy(prompt.messages)]
            said: Any = [{"role": "assistant", "content": answer}]
            values: dict[str, Any] = {name: [value] for name, value in copy.deepcopy(_columns(prompt)).items()}
            values |= {"prompts": [messages], "completions": [said]}
            if prompt.as_text:
                values |= {"prompts": [messages[-1]["content"]], "completions": [answer]}
            values["trainer_state"] = None
        else:
            values = dict(zip(self.kind, (row["data_source"], answer, row["ground_truth"], extra), strict=True))
            if self.kind is VERL_BATCH:
                values = {name: [value] for name, value in values.items()}
        values |= self.given
        return values if self._takes_all else {name: value for name, value in values.items() if name in self._names}

    # -- running it --------------------------------------------------------------------------------------------------

    def _run(self, call: Callable[[], Any]) -> Any:
        """What `call` returns, in a thread that is let go when the time is over."""
        partner = getattr(self._partners, "own", None)
        if partner is None:
            partner = self._partners.own = _Partner()
            self._threads.append(partner)
        done = partner.start(call)
        if not done.event.wait(self.max_seconds):
            where = partner.stop(done, self._folder)
            self._partners.own = None
            raise self._too_long(where)
        if done.error is not None:
            raise CustomFault(user_code.fault(done.error, self._folder)) from done.error
        return self._awaited(done.result) if inspect.isawaitable(done.result) else done.result

    def _awaited(self, awaitable: Awaitable[Any]) -> Any:
        """On one loop for all calls: a client that they share belongs to a loop."""

        async def wait() -> tuple[Any, BaseException | None]:
            try:
                return await awaitable, None
            except BaseException as error:  # the grader's fault, too: sys.exit() would end the loop of all calls
                return None, error

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="reward function", daemon=True).start()
            loop = self._loop
        future = asyncio.run_coroutine_threadsafe(wait(), loop)
        try:
            result, error = future.result(self.max_seconds)
        except TimeoutError:
            if getattr(awaitable, "cr_running", False):  # it blocks the loop
                self._loop = None
            where = self._where_it_waits(awaitable)
            future.cancel()
            raise self._too_long(where) from None
        if error is not None:
            raise CustomFault(user_code.fault(error, self._folder)) from error
        return result

    def _where_it_waits(self, awaitable: Any) -> str | None:
        found = None
        while awaitable is not None:  # from the outermost coroutine to what it waits for
            found = user_code.place_of_frame(getattr(awaitable, "cr_frame", None), self._folder) or found
            awaitable = getattr(awaitable, "cr_await", None)
        return found

    def _too_long(self, where: str | None) -> CustomFault:
        return CustomFault(f"{where or self.at}: still here after {self.max_seconds:g} s ({LIMIT})")

    def _traced(self, arguments: dict[str, Any], watched: str | None = None) -> str | None:
        """A second call that looks for a line: of the return, or the one that changed the argument `watched`."""
        if self._code is None or inspect.iscoroutinefunction(self._function):
            return None
        before, last = copy.deepcopy(arguments.get(watched or "")), [("", 0)]
        found: list[tuple[str, int]] = []

        def lines(frame: FrameType, event: str, _: Any) -> Any:
            if watched and not found and not _same(arguments[watched], before):
                found.append(last[0])
            last[0] = (frame.f_code.co_filename, frame.f_lineno)
            if not watched and event == "return" and frame.f_code is self._code:
                found[:] = [last[0]]
            return lines

        def calls(frame: FrameType, event: str, _: Any) -> Any:
            ours = Path(frame.f_code.co_filename).is_relative_to(self._folder)
            return lines if ours else None

        def call() -> None:
            sys.settrace(calls)
            try:
                self._function(**arguments)
            finally:
                sys.settrace(None)

        try:
            self._run(call)
        except CustomFault:  # not the same again
            return None
        return user_code.place(*found[0]) if found else None

    def close(self) -> None:
        for partner in self._threads:
            partner.release()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


class _Done:
    def __init__(self) -> None:
        self.event = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None


class _Partner:
    """A thread that makes the calls of another one, which goes on without it when a call does not end."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], _Done]] = SimpleQueue()
        self._let_go = False
        self._thread = threading.Thread(target=self._serve, name="reward function", daemon=True)
        self._thread.start()

    def start(self, call: Callable[[], Any]) -> _Done:
        done = _Done()
        self._calls.put((call, done))
        return done

    def _serve(self) -> None:
        while not self._let_go:
            call, done = self._calls.get()
            try:
                done.result = call()
            except BaseException as error:  # whatever it raises is the grader's fault, not the answer's
                done.error = error
            done.event.set()

    def release(self) -> None:
        """Ends the thread when it has nothing to do."""
        self._let_go = True
        self.start(lambda: None)

    def stop(self, done: _Done, folder: Path) -> str | None:
        """Where it hangs. A loop of Python ends there; what waits in a library is left to itself."""
        self._let_go, number = True, self._thread.ident or 0
        where = user_code.place_of_frame(sys._current_frames().get(number), folder)
        _raise_in(number, SystemExit)
        if not done.event.wait(REACTION):
            _take_back(number)
        return where


def _raise_in(thread: int, exception: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(exception) if exception else None
    )


def _take_back(thread: int) -> None:
    """As long as an exception waits for a thread, all of CPython 3.11 is slow and traced code stands still. The mark of
    it goes only when some thread gets one: this one."""
    _raise_in(thread, None)
    try:
        _raise_in(threading.get_ident(), _Mark)
        while True:
            pass
    except _Mark:
        return


class _Mark(Exception):
    pass


_ALLOWED = (
    "allowed: verl's data_source, solution_str, ground_truth, extra_info, or TRL's completions, prompts and columns"
)


def _parameters(function: Callable[..., Any]) -> tuple[set[str], set[str], bool]:
    """(all names, those without a default, whether it takes any name)."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # written in C, without one
        return set(), set(), True
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    every = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return {p.name for p in named}, {p.name for p in named if p.default is p.empty}, every


def _columns(prompt: Prompt) -> dict[str, Any]:
    return {**prompt.extra_info, "data_source": prompt.data_source, "ground_truth": prompt.ground_truth}


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # arrays
        return repr(one) == repr(other)
