"""What a log says of a process that died counts, whatever good lines stand before it."""

from __future__ import annotations

import pytest
from nccl_writer import Job, write
from table_writer import Table, write_table

from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import JudgeResult, judge

SWEEP = write(Job(gpus=8, channels=2, rounds=2))
LOG = write(Job(gpus=8, channels=2, rounds=2, payload=False))
TABLE = write_table(Table())
ENDS = (
    "mpirun noticed that process rank 3 with PID 0 on node node-2 exited on signal 11 (Segmentation fault).",
    "prterun noticed that process rank 3 with PID 7 on node node-2 exited on signal 9 (Killed).",
    "mpirun detected that one or more processes exited with non-zero status, thus causing the job to end",
    "Primary job  terminated normally, but 1 process returned",
    "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD",
    "ORTE has lost communication with a remote daemon.",
    "srun: error: node-2: task 9: Segmentation fault (core dumped)",
    "slurmstepd: error: *** STEP 7.0 ON node-1 CANCELLED AT 2026-03-13T22:26:02 DUE TO TIME LIMIT ***",
    "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
    "Segmentation fault (core dumped)",
    "[node-1:7000] *** Process received signal ***",
    "Aborted (core dumped)",
    "Bus error (core dumped)",
    "terminate called after throwing an instance of 'c10::Error'",
    "Fatal Python error: Segmentation fault",
    "command terminated with exit code 137",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "E0313 [default] failed (exitcode: -9) local_rank: 3 (pid: 77) of binary: /usr/bin/python",
    "[rank9]: Heartbeat monitor timed out! Process will be terminated after dumping debug info.",
    "The node was low on resource: memory. Threshold quantity: 100Mi, available: 10Mi.",
    "CUDA error: an illegal memory access was encountered",
    "[12.6] Memory cgroup out of memory: Killed process 123 (python) total-vm:1kB",
    "[12.6] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)",
    "Pod was terminated in response to imminent node shutdown.",
    "Warning  BackoffLimitExceeded  job-controller  Job has reached the specified backoff limit",
    "Job was active longer than specified deadline",
    "Preempted by pod 7 on node node-1",
    "process exited with code 137",
    "signal: killed",
    "Terminated",
    "KeyboardInterrupt",
    "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.",
    "OSError: [Errno 28] No space left on device",
    "RuntimeError: CUDA driver error: uncorrectable ECC error encountered",
    "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.",
    "ray.exceptions.RayTaskError(RuntimeError): ray::Worker.run() (pid=9, ip=10.0.0.1)",
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    "(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons",
    "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 15/16 clients joined.",
    "torch.distributed.DistNetworkError: The client socket has timed out after 300000ms",
    "./run.sh: line 12:  4000 Segmentation fault      (core dumped) ./all_reduce_perf -b 8 -e 16G",
    "/bin/bash: line 1: 4000 Aborted                 python train.py",
    "timeout: sending signal TERM to command 'mpirun'",
    "make: *** [Makefile:12: run] Error 2",
    "##[error]Process completed with exit code 1.",
    "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
    "subprocess.CalledProcessError: Command '['/usr/bin/python', 'train.py']' returned non-zero exit status 1.",
    "[ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 'train.py'] exits with return code = -9",
    "=>> PBS: job killed: walltime 3610 exceeded limit 3600",
    "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
    "Exited with exit code 137.",
    "torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGKILL",
    "Horovod detected that one or more processes exited with non-zero status, thus causing the job to end",
    "Process 3 exit with status code 134.",
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
    "mpirun: abort is already in progress...hit ctrl-c again to forcibly terminate",
    "Fatal error in PMPI_Init_thread: Other MPI error, error stack:",
    "Abort(1094543) on node 9 (rank 9 in comm 0): Other MPI error",
    "Warning  BackOff  kubelet  Back-off restarting failed container main in pod probe-1",
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 12 got signal: 15",
    "W0313 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 77 closing signal SIGTERM",
    "[INFO] [launch.py:319:sigkill_handler] Killing subprocess 77",
    "srun: error: Node failure on node-2",
    "slurmstepd: error: execve(): ./all_reduce_perf: No such file or directory",
    "Exited by signal 9.",
    "mpirun was unable to start the specified application as it encountered an error:",
    "mpirun has exited due to process rank 3 with PID 0 on",
    "A daemon (pid 12) died unexpectedly with status 255 while attempting",
    "ray.exceptions.NodeDiedError: Task failed due to the node dying.",
    "Status message: Job entrypoint command failed with exit code 1, last available logs",
    "double free or corruption (!prev)",
    "free(): invalid pointer",
    "malloc(): corrupted top size",
    "*** stack smashing detected ***: terminated",
    "all_reduce_perf: transport.c:12: connect: Assertion `size > 0' failed.",
    "Aborted",
    "      Exit Code:    137",
    "[rank9]:[F301 10:00:00.1 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0 Rank 9] Terminating the process after "
    "attempting to dump debug info, due to collective timeout or exception.",
    "[rank9]:[E ProcessGroupNCCL.cpp:1] To avoid data inconsistency, we are taking the entire process down",
    "[rank9]:[E301 10:00:00.1 ProcessGroupNCCL.cpp:1] Received a dump signal due to a timeout",
)
CUTS = (
    "error: unexpected EOF",
    "rpc error: code = NotFound desc = an error occurred when try to find container",
    'failed to try resolving symlinks in path "/var/log/pods/a/0.log": no such file',
    "unable to retrieve container logs for containerd://1",
    "error: unexpected error reading logs: net/http: request canceled",
    "error: http2: client connection lost",
    "error: http2: server sent GOAWAY and closed the connection; LastStreamID=5",
    "error: stream error: stream ID 5; INTERNAL_ERROR; received from peer",
    'Error from server: Get "https://10.0.0.1:10250/containerLogs/a/b/c": dial tcp 10.0.0.1:10250: i/o timeout',
    "failed to create fsnotify watcher: too many open files",
    "systemd-journald[123]: Suppressed 1204 messages from kubepods.slice",
    "rsyslogd: imuxsock[pid: 9]: 1204 messages lost due to rate-limiting",
    "last message repeated 7 times",
    "Job's log exceeded limit of 4194304 bytes.",
    "[... 1234 lines omitted ...]",
    "[...truncated 1234 lines...]",
    "Skipping 1,234 KB.. Full Log",
    "This step has been truncated due to its large size. Download the full logs from the menu.",
    "<truncated>",
    "Output was truncated because it exceeded 1 MiB",
    "Logs truncated at max size",
    "Output truncated to max 10000 lines",
    "12 lines skipped in worker-3.log",
    "Connection to 10.0.0.2 closed by remote host.",
    "error: lost connection to pod",
    "... output truncated ...",
    "Output exceeds the size limit. Open the full output data in a text editor",
)


def read(data: bytes, machine: str = "p5en.48xlarge") -> JudgeResult:
    return judge(from_text(data), machine_type=machine, nodes=2)


def test_without_a_bad_end_all_three_are_well() -> None:
    assert read(SWEEP).outcome is read(TABLE, "p5en.48xlarge").outcome is Outcome.PASS
    assert read(LOG).verdict == "healthy"


@pytest.mark.parametrize("line", ENDS)
def test_a_process_that_died_fails_a_table_a_sweep_and_a_log(line: str) -> None:
    said = line.encode() + b"\n"
    middle = SWEEP.replace(
        b'{"poolshift":"all-reduce","event":"end"', said + b'{"poolshift":"all-reduce","event":"end"'
    )
    for found in (read(TABLE + said, "p5en.48xlarge"), read(SWEEP + said), read(middle), read(LOG + said)):
        assert (found.outcome, found.verdict) == (Outcome.FAIL, "failed")
        assert any(f.remedy for f in found.findings)


@pytest.mark.parametrize(
    "line",
    [
        "run.sh: line 12: warning: here-document delimited by end-of-file",
        "make: Entering directory '/opt/nccl-tests'",
        "Process completed with exit code 0",
        "RayActor 3 is ready",
        "memory pressure is low",
        "timeout: 30s",
    ],
)
def test_a_line_that_only_looks_like_such_an_end_is_none(line: str) -> None:
    assert read(TABLE + line.encode() + b"\n").outcome is Outcome.PASS


def test_a_traceback_alone_is_doubted_since_it_may_be_of_a_caught_error() -> None:
    found = read(SWEEP + b"Traceback (most recent call last):\n")
    assert found.outcome is Outcome.UNMEASURED
    assert [f.code for f in found.findings] == ["traceback"]


@pytest.mark.parametrize(
    "line",
    [
        "/entrypoint.sh: line 3:    77 Killed",
        "./run.sh: line 12:  4000 Killed                  ./all_reduce_perf -b 8 -e 16G",
        "/bin/bash: line 1: 4000 Terminated              python train.py",
        "/opt/run.sh: line 42:  4321 Killed                  nvidia-smi dmon -o T > /tmp/dmon.txt",
        "/opt/run.sh: line 42:  4321 Terminated              nvidia-smi dmon -o T > /tmp/dmon.txt",
    ],
)
def test_a_child_that_a_shell_saw_killed_is_doubted_since_it_may_be_a_monitor_that_the_script_ended(line: str) -> None:
    said = line.encode() + b"\n"
    for data in (SWEEP, TABLE, LOG):
        found = read(data + said)
        assert found.outcome is Outcome.UNMEASURED
        assert "child-killed" in [f.code for f in found.findings]
    died = read(SWEEP + said + b"Segmentation fault (core dumped)\n")
    assert (died.outcome, died.verdict) == (Outcome.FAIL, "failed")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        *((line, "log-cut") for line in CUTS),
        ("mce: [Hardware Error]: CPU 0: Machine check events logged", "kernel-device-error"),
        ("pcieport 0000:00:1c.0: AER: Uncorrected (Fatal) error received", "kernel-device-error"),
        ("mlx5_core 0000:53:00.0: Port module event: link down", "kernel-device-error"),
        ("efa 0000:53:00.0: Admin command timed out", "kernel-device-error"),
    ],
)
def test_a_log_that_says_that_text_or_a_device_was_lost_is_no_proof(line: str, code: str) -> None:
    """Whether the program ended well is behind the cut, and whether it used the device is not said."""
    found = read(SWEEP + line.encode() + b"\n")
    assert found.outcome is Outcome.UNMEASURED
    assert [(f.code, f.remedy != "") for f in found.findings] == [(code, True)]


@pytest.mark.parametrize(
    "line",
    [
        "INFO: no process was Killed today",
        "process exited with code 0",
        "mlx5_core 0000:53:00.0: firmware version: 28.39",
        "training ended with exit code 0",
        "handling signal dispositions",
        "the input was truncated to 2048 tokens",
        "3 batches were skipped",
        "Setting `pad_token_id`; sequences longer than that are truncated",
        "GET /healthz: status code 200",
        "12 lines skipped in dataset.csv: malformed rows",
        "57 messages were truncated to 4096 tokens",
        "output truncated at max_new_tokens=256",
        "Command '['git', 'rev-parse', 'HEAD']' returned non-zero exit status 128.",
        "      Exit Code:    0",
        "nonzero",
    ],
)
def test_words_of_everyday_are_no_bad_end(line: str) -> None:
    assert read(SWEEP + line.encode() + b"\n").outcome is Outcome.PASS


def test_what_many_ranks_say_alike_hides_no_certain_end() -> None:
    """64 tracebacks, each with its rank, which may be of caught errors, and then the launcher's word."""
    doubts = b"".join(b"[rank%d]: Traceback (most recent call last):\n" % rank for rank in range(64))
    found = read(SWEEP + doubts + b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n")
    assert (found.outcome, found.verdict) == (Outcome.FAIL, "failed")
