"""Numbers of the system calls that the sandbox makes or filters: name, x86-64, aarch64 ("-": the architecture lacks
it).

Source: the kernel's own tables (arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h).
"""

from __future__ import annotations

import os

_TABLE = """
read 0 63 | write 1 64 | readv 19 65 | writev 20 66 | pread64 17 67 | pwrite64 18 68 | preadv 295 69 |
pwritev 296 70 | preadv2 327 286 | pwritev2 328 287 | close 3 57 | close_range 436 436 | lseek 8 62 |
dup 32 23 | dup2 33 - | dup3 292 24 | pipe 22 - | pipe2 293 59 | fcntl 72 25 | ioctl 16 29 | poll 7 - |
ppoll 271 73 | select 23 - | pselect6 270 72 | epoll_create 213 - | epoll_create1 291 20 | epoll_ctl 233 21 |
epoll_wait 232 - | epoll_pwait 281 22 | epoll_pwait2 441 441 | eventfd 284 - | eventfd2 290 19 |
sendfile 40 71 | copy_file_range 326 285 | splice 275 76 | tee 276 77 | fsync 74 82 | fdatasync 75 83 |
ftruncate 77 46 | truncate 76 45 | fallocate 285 47 | fadvise64 221 223 | readahead 187 213 | open 2 - |
openat 257 56 | openat2 437 437 | stat 4 - | fstat 5 80 | lstat 6 - | newfstatat 262 79 | statx 332 291 |
access 21 - | faccessat 269 48 | faccessat2 439 439 | readlink 89 - | readlinkat 267 78 | getcwd 79 17 |
chdir 80 49 | fchdir 81 50 | mkdir 83 - | mkdirat 258 34 | rmdir 84 - | unlink 87 - | unlinkat 263 35 |
rename 82 - | renameat 264 38 | renameat2 316 276 | link 86 - | linkat 265 37 | symlink 88 - |
symlinkat 266 36 | chmod 90 - | fchmod 91 52 | fchmodat 268 53 | utimensat 280 88 | utime 132 - |
utimes 235 - | futimesat 261 - | getdents 78 - | getdents64 217 61 | statfs 137 43 | fstatfs 138 44 |
umask 95 166 | creat 85 - | mmap 9 222 | munmap 11 215 | mprotect 10 226 | mremap 25 216 | brk 12 214 |
madvise 28 233 | mincore 27 232 | msync 26 227 | membarrier 324 283 | clone 56 220 | clone3 435 435 |
fork 57 - | vfork 58 - | execve 59 221 | execveat 322 281 | futex 202 98 | set_robust_list 273 99 |
get_robust_list 274 100 | rseq 334 293 | set_tid_address 218 96 | gettid 186 178 | exit 60 93 |
exit_group 231 94 | sched_yield 24 124 | sched_getaffinity 204 123 | sched_getparam 143 121 |
sched_getscheduler 145 120 | sched_get_priority_max 146 125 | sched_get_priority_min 147 126 |
sched_rr_get_interval 148 127 | nanosleep 35 101 | clock_nanosleep 230 115 | arch_prctl 158 - |
clock_gettime 228 113 | clock_getres 229 114 | gettimeofday 96 169 | time 201 - | times 100 153 |
getitimer 36 102 | setitimer 38 103 | alarm 37 - | timerfd_create 283 85 | timerfd_settime 286 86 |
timerfd_gettime 287 87 | rt_sigaction 13 134 | rt_sigprocmask 14 135 | rt_sigreturn 15 139 |
rt_sigpending 127 136 | rt_sigtimedwait 128 137 | rt_sigsuspend 130 133 | sigaltstack 131 132 | kill 62 129 |
tgkill 234 131 | pause 34 - | signalfd4 289 74 | restart_syscall 219 128 | getpid 39 172 | getppid 110 173 |
getuid 102 174 | geteuid 107 175 | getgid 104 176 | getegid 108 177 | getresuid 118 148 | getresgid 120 150 |
getgroups 115 158 | getpgrp 111 - | getpgid 121 155 | getsid 124 156 | uname 63 160 | sysinfo 99 179 |
getrlimit 97 163 | setrlimit 160 164 | prlimit64 302 261 | getrusage 98 165 | getrandom 318 278 |
getcpu 309 168 | getpriority 140 141 | wait4 61 260 | waitid 247 95 | prctl 157 167 | socketpair 53 199 |
socket 41 198 | sendto 44 206 | recvfrom 45 207 | shutdown 48 210 | getsockname 51 204 | getpeername 52 205 |
getsockopt 55 209 | setsockopt 54 208 | connect 42 203 | mount 165 40 | umount2 166 39 | pivot_root 155 41 |
unshare 272 97 | setns 308 268 | seccomp 317 277 | capset 126 91 | capget 125 90 |
landlock_create_ruleset 444 444 | landlock_add_rule 445 445 | landlock_restrict_self 446 446 | setsid 112 157 |
memfd_create 319 279 | ptrace 101 117 | setresuid 117 147 | setresgid 119 149 | setgroups 116 159
"""

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def numbers(machine: str) -> dict[str, int]:
    """Name -> number for one architecture (`os.uname().machine`); KeyError for an architecture without a table."""
    column = {"x86_64": 1, "aarch64": 2}[machine]
    entries = (entry.split() for entry in _TABLE.replace("\n", "|").split("|") if entry.strip())
    return {entry[0]: int(entry[column]) for entry in entries if entry[column] != "-"}


MACHINE = os.uname().machine
