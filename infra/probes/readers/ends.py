"""What says that a program did not end well, or that a part of its output is missing, whatever it printed before."""

from __future__ import annotations

import re
from collections import Counter

PER_WORD = 4  # sayings: what many ranks say alike leaves room for what one says
MAX_LINE = 4096  # bytes; nothing that ends a program says more
# One of these stands in every line that `_ENDED` takes: only those lines are looked at, since most of a log has none.
_WORDS = (
    b" signal",
    b"non-zero",
    b"(core dumped)",
    b"Segmentation fault",
    b"Bus error",
    b"Killed",
    b"exit code ",
    b"(exitcode",
    b"terminate",
    b"Fatal Python",
    b"ChildFailedError",
    b"MPI_ABORT",
    b"error: ",
    b"signal: ",
    b"BAD TERM",
    b"lost communication",
    b"low on resource",
    b"timed out",
    b"Traceback (most",
    b"ut of memory: Killed",
    b"oom-kill",
    b" terminated in response",
    b"DeadlineExceeded",
    b"BackoffLimitExceeded",
    b"Preempted by",
    b"Terminated",
    b"specified deadline",
    b"exited with code",
    b"KeyboardInterrupt",
    b"ActorError",
    b"TaskError",
    b"WorkerCrashedError",
    b"memory pressure",
    b"DistStoreError",
    b"DistNetworkError",
    b"EXIT STRING",
    b": *** [",
    b": line ",
    b"Rendezvous",
    b"No space left",
    *(b"return code = ", b"job killed", b"edException", b"exit with status", b"abort is already", b"killing job"),
    *(b"Fatal error in ", b"Abort(", b"Back-off restarting", b"Job step aborted"),
    *(b"Terminating the process after", b"entire process down", b"Received a dump signal"),
    *(b"unexpected EOF", b"rpc error: ", b"resolving symlinks", b"retrieve container logs", b"error reading logs"),
    *(b"http2: ", b"stream error: ", b"/containerLogs/", b"fsnotify watcher", b"Suppressed ", b"due to rate-limiting"),
    *(
        b"message repeated ",
        b"exceeded limit of ",
        b"exceeds the size limit",
        b"truncated",
        b"omitted",
        b"lines skipped",
    ),
    *(b" was unable to ", b"exited due to process", b"died unexpectedly", b"unexpectedly failed", b"closing signal "),
    *(b"double free or", b"(): invalid ", b"malloc(): ", b"stack smashing", b"corrupted size vs", b"' failed."),
    *(b"Aborted", b"Illegal instruction", b"Floating point exc", b"Exit Code: ", b"Killing subprocess", b"DiedError"),
    *(b"by remote host", b"send disconnect", b"lost connection to pod", b"reading from server", b" KB.. "),
)
# A data set's or a model's own: no text of the log.
_OF_DATA = (
    r"(?! (?:in \S+\.(?:csv|tsv|jsonl?|parquet|bin|arrow)\b|"
    r"(?:to|at) (?:[\d,]+ tokens|max_\w|max(?:imum)?[ -](?:seq|len|tok))))"
)
# What kubectl, a node's logging and a viewer of logs say of themselves: text is missing.
CUT = (
    r"unexpected EOF\b|rpc error: code = .*|failed to try resolving symlinks .*|"
    r"unable to retrieve container logs .*|unexpected error reading logs.*|"
    r"http2: (?:client connection lost|server sent GOAWAY).*|stream error: stream ID .*|"
    r"Get \"[^\"]*/containerLogs/.*|failed to create fsnotify watcher.*|"
    r"Suppressed \d+ messages .*|\b\d{1,12} messages lost due to rate-limiting|message repeated \d+ times|"
    r"[Ll]og exceeded limit of \d+ bytes|Output exceeds the size limit.*|"
    r"\b\d{1,12} (?:more )?(?:lines?|bytes|messages) (?:were |was |are )?(?:omitted|skipped|truncated)\b"
    rf"{_OF_DATA}|\b(?:[Oo]utput|[Ll]ogs?|[Ll]ines?) (?:was |were |is |has been )?(?:truncated|omitted)\b{_OF_DATA}|"
    # a reader over ssh or kubectl that lost its connection, Jenkins, GitHub
    r"Connection to \S+ closed by remote host|client_loop: send disconnect: .*|lost connection to pod|"
    r"error reading from server: .*|\[\.\.\.truncated [\d.,]+ \w+\.*\]|Skipping [\d.,]+ KB\.\. .*|"
    r"has been truncated due to its large size|begin to drop messages due to rate-limiting|"
    r"[\[(<](?:\.\.\. ?)?truncated(?: ?\.\.\.)?[\])>]"
)
_ENDED = re.compile(
    # Open MPI, PRRTE, Slurm, Hydra
    rb"(?:mpirun|mpiexec|prterun|orterun|prun)\b.* (?:exited on signal|non-zero).*|MPI_ABORT was invoked.*|"
    rb"srun: error: (?:\S+: tasks? |Node failure on |Timed out waiting for job step|task \d+ launch failed|eio_).*|"
    rb"slurmstepd: error: (?:\*\*\*|Detected|execve\(\):) .*|BAD TERMINATION OF ONE OF YOUR .*|"
    rb"Primary job +terminated normally, but .*|(?:ORTE|PRTE) has lost communication with .*|"
    rb"one of the processes terminated badly.*|(?:mpirun|mpiexec|prterun|orterun|ORTE|PRTE) was unable to .*|"
    rb"has exited due to process rank .*|daemon (?:\(pid \d+\) died unexpectedly|has unexpectedly failed).*|"
    # the C library and its signal handlers, Python, the kernel, kubectl and the kubelet
    rb"\*\*\* Process received signal \*\*\*|Caught signal \d+ .*|(?:Segmentation fault|Bus error)\b.*|"
    rb"\(core dumped\)|terminate called (?:after throwing|without an active).*|Fatal Python error: .*|"
    rb"(?:^|[:\s])(?:(?:OOM)?Killed|Terminated|Aborted|Illegal instruction|Floating point exception)\s*$|"
    rb"double free or corruption.*|(?:free|realloc|munmap_chunk)\(\): invalid .*|malloc\(\): [a-z].*|"
    rb"stack smashing detected.*|corrupted size vs\. prev_size.*|: Assertion `.*' failed\.|Exit Code: +[1-9]\d*|"
    rb"longer than specified deadline|"
    rb"command terminated with (?:non-zero )?exit code [1-9]\d*|"
    rb"The node was low on resource.*|ut of memory: Killed process .*|oom-kill(?::|er).*|exited with code [1-9]\d*|"
    rb"(?:Pod|Node) was terminated in response .*|\b(?:DeadlineExceeded|BackoffLimitExceeded)\b.*|Preempted by .*|"
    # torch and the programs themselves; a traceback may be of something that was caught
    rb"ChildFailedError\b.*|failed \(exitcode: -?[1-9]\d*\).*|Received (?:Signals\.SIGTERM|\d+) death signal.*|"
    rb"Received signal (?:6|7|9|11|15)\b.*|Heartbeat monitor timed out.*|operations have failed or timed out.*|"
    rb"CUDA (?:driver |runtime )?error: .*|signal: (?:killed|aborted|segmentation fault|bus error)|"
    rb"KeyboardInterrupt\b.*|Rendezvous(?:Connection|Timeout|Closed|State)Error\b.*|No space left on device|"
    # Hydra's second line, shells (of any child, a monitor too), make, runners of CI, Ray
    rb"APPLICATION TERMINATED WITH THE EXIT STRING.*|timeout: sending signal .*|"
    rb"make(?:\[\d+\])?: \*\*\* .* Error [1-9]\d*|"
    rb": line \d+: +\d+ (?:Killed|Terminated|Aborted|Segmentation fault|Bus error)\b.*|"
    rb"Process completed with exit code [1-9]\d*|\bRay(?:Actor|Task)Error\b.*|\bWorkerCrashedError\b.*|"
    rb"killed due to memory pressure.*|\bDist(?:Store|Network)Error\b.*|"
    # batch systems, MPICH, launchers of Python programs, the kubelet's events
    rb"srun: (?:Job step aborted|Force Terminated).*|PBS: job killed: .*|TERM_\w+: job killed.*|"
    rb"Exited (?:with exit code|by signal) [1-9]\d*|terminated by signal [1-9]\d*|"
    rb"(?:mpirun|mpiexec|prterun): (?:killing job|abort is already).*|"
    rb"Fatal error in P?MPI_\w+.*|Abort\(-?\d+\) on node \d+ .*|"
    # of the commands that only ask for a version, a failure is no run's
    rb"^(?!.*Command '(?:\['|/bin/)?(?:git|which|nvcc)\b).*returned non-zero exit status [1-9]\d*|"
    rb"exits with return code = -?[1-9]\d*|exit with status code [1-9]\d*|"
    rb"failed with exit code [1-9]\d*|sigkill_handler\] Killing subprocess .*|processes exited with non-zero status.*|"
    rb"Process(?:Exited|Raised)Exception\b.*|Back-off restarting failed container.*|"
    rb"\b(?:Node|LocalRaylet|Owner)DiedError\b.*|Process \d+ got signal: \d+|Sending process \d+ closing signal .*|"
    # PyTorch's watchdog of the collectives
    rb"Terminating the process after attempting to dump.*|taking the entire process down.*|"
    rb"Received a dump signal due to .*|Traceback \(most recent call last\)|" + CUT.encode()
)


class EndsReader:
    """Feed it lines that are not NCCL's own, then take `found`: what they said, each once."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._taken: Counter[bytes] = Counter()

    def feed(self, data: bytes) -> None:
        """Read one block of whole lines."""
        for word in _WORDS:
            at = data.find(word)
            while at >= 0 and self._taken[word] < PER_WORD:
                start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
                end = len(data) if end < 0 else end
                if end - start < MAX_LINE:
                    self._taken[word] += self._line(data[start:end])
                at = data.find(word, end)

    def _line(self, line: bytes) -> bool:
        """Take a line. Does it say what no other said before?"""
        match = _ENDED.search(line)
        if match is None:
            return False
        said = (match.group() if len(match.group()) > 40 else line).decode("utf-8", "replace").strip()[:300]
        if said in self.found:
            return False
        self.found.append(said)
        return True
