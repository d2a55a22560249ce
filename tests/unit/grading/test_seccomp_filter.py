"""The filter's program is interpreted here as the kernel would, on both architectures."""

from __future__ import annotations

import pytest

from sdpo.sandbox.inside import seccomp
from sdpo.sandbox.inside.syscall_numbers import AUDIT_ARCH, numbers

ALLOW, REFUSE, NOT_THERE, PRETEND, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x50000, 0x80000000
ME = 1234
WAYS_OUT = """
execve execveat socket connect ptrace mount umount2 pivot_root unshare setns memfd_create setresuid capset seccomp
setsid landlock_restrict_self
"""


@pytest.fixture(params=["x86_64", "aarch64"])
def ask(request):
    program = seccomp.build(seccomp.Policy(ME), request.param)
    table = numbers(request.param)

    def answer(name, *arguments):
        if name not in table:
            pytest.skip(f"{request.param} has no {name}")
        return seccomp.simulate(program, table[name], arguments, AUDIT_ARCH[request.param])

    answer.program, answer.arch = program, AUDIT_ARCH[request.param]
    return answer


@pytest.mark.parametrize(
    "name", ["read", "write", "openat", "mmap", "futex", "exit_group", "getrandom", "clock_gettime"]
)
def test_what_an_interpreter_needs_is_allowed(ask, name):
    assert ask(name) == ALLOW


@pytest.mark.parametrize("name", WAYS_OUT.split())
def test_what_leads_out_of_the_box_is_refused(ask, name):
    assert ask(name) in (REFUSE, NOT_THERE)


def test_threads_may_start_and_processes_and_namespaces_may_not(ask):
    assert ask("clone", 0x3D0F00) == ALLOW
    assert ask("clone", 17) == REFUSE
    assert ask("clone", 0x10000 | 0x10000000) == REFUSE
    assert ask("clone3") == NOT_THERE


def test_signals_reach_only_the_process_itself_and_never_kill_it_silently(ask):
    assert ask("kill", ME, 15) == ALLOW
    assert ask("kill", ME, 9) == REFUSE
    assert ask("kill", 0, 15) == REFUSE
    assert ask("kill", (1 << 64) - 1, 15) == REFUSE
    assert ask("tgkill", ME, ME, 6) == ALLOW
    assert ask("tgkill", 1, 1, 6) == REFUSE


def test_only_unix_stream_pairs_can_be_made(ask):
    assert ask("socketpair", 1, 1 | 0x80800) == ALLOW
    assert ask("socketpair", 1, 2) == REFUSE
    assert ask("socketpair", 2, 1) == REFUSE


def test_limits_can_be_read_and_only_seem_to_be_set(ask):
    assert ask("prlimit64", 0, 3, 0, 0x7FFF_0000_1000) == ALLOW
    assert ask("prlimit64", 0, 3, 0x7FFF_0000_1000, 0) == PRETEND
    assert ask("prlimit64", 77, 3, 0, 0) == REFUSE


def test_control_calls_are_allowed_by_argument(ask):
    assert ask("fcntl", 1, 3) == ALLOW
    assert ask("fcntl", 1, 6) == REFUSE
    assert ask("fcntl", 1, 1031) == REFUSE
    assert ask("ioctl", 1, 0x5401) == ALLOW
    assert ask("ioctl", 1, 0x5412) == REFUSE
    assert ask("prctl", 15) == ALLOW
    assert ask("prctl", 1) == REFUSE


def test_calls_younger_than_the_filter_look_absent_and_foreign_architectures_end_the_process(ask):
    assert seccomp.simulate(ask.program, 470, (), ask.arch) == NOT_THERE
    assert seccomp.simulate(ask.program, 300000, (), ask.arch) == NOT_THERE
    assert seccomp.simulate(ask.program, 0, (), 0x40000003) == KILL
    assert seccomp.simulate(ask.program, 0x40000000, (), ask.arch) == KILL


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_without_paths_nothing_is_opened_and_only_descriptors_have_a_status(machine):
    program, table = seccomp.build(seccomp.Policy(ME, paths=False), machine), numbers(machine)
    arch = AUDIT_ARCH[machine]
    for name in seccomp.PATHS:
        if name in table and name not in ("newfstatat", "statx", "faccessat2"):
            assert seccomp.simulate(program, table[name], (), arch) == REFUSE, name
    assert seccomp.simulate(program, table["newfstatat"], (3, 0, 0, 0x1000), arch) == ALLOW
    assert seccomp.simulate(program, table["newfstatat"], (3, 0, 0, 0), arch) == REFUSE
    assert seccomp.simulate(program, table["statx"], (), arch) == NOT_THERE


def test_every_rule_is_reached_by_the_search(ask):
    table = numbers("x86_64" if ask.arch == AUDIT_ARCH["x86_64"] else "aarch64")
    for name in seccomp.PLAIN:
        if name in table:
            assert seccomp.simulate(ask.program, table[name], (), ask.arch) == ALLOW, name
