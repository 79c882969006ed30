"""What a link by RDMA moves, beside perftest on the same card in the same run, in turns. For the
virtual machine of run-in-guest.

    figures.py OLBENCH

Fails where 2 MiB one-sided reads are below 90 % of ib_read_bw. The round trips are only told, with
threads that poll, as ib_send_lat does, and with threads that sleep, as ib_send_lat -e does."""
import json, os, re, shutil, statistics, subprocess, sys, time

ROUNDS = 3


def perftest(program, column, *options):
    """Server and client on the card that the link uses; the wanted figure of the client's line."""
    common = [program, "-d", os.environ["RDMA_PEER_DEV"], "-x", os.environ["RDMA_GID_INDEX"], "-F",
              *options]
    server = subprocess.Popen(common, stdout=subprocess.DEVNULL)
    try:
        for attempt in range(50):
            done = subprocess.run([*common, os.environ["RDMA_PEER_ADDR"]], capture_output=True,
                                  text=True, timeout=60)
            if done.returncode == 0:
                break
            time.sleep(0.1)  # the server does not listen yet
        assert done.returncode == 0, done.stdout + done.stderr
        server.wait(10)
    finally:
        server.kill()
    rows = [line.split() for line in done.stdout.splitlines()
            if re.match(r"\s*\d+\s+\d+\s", line)]
    return float(rows[-1][column])


def transport(olbench, seconds, *options):
    out = subprocess.run([olbench, "--rounds", "1", "--json", "transport", "--verbs",
                          os.environ["RDMA_PEER_ADDR"], "--seconds", seconds, *options],
                         check=True, stdout=subprocess.PIPE, text=True, timeout=120).stdout
    told = json.loads(out)
    assert told["verbs_bytes_by_lane"] == 0, told
    return told


def main(olbench):
    if not shutil.which("ib_read_bw"):
        print("skipped: not installed: perftest (tools/setup --test)")
        return 77
    reads, raw_reads = [], []
    trips = {"polling": [], "asleep": []}
    raw_trips = {"polling": [], "asleep": []}
    for _ in range(ROUNDS):
        raw_reads.append(perftest("ib_read_bw", 3, "-s", str(2 << 20), "-n", "20") * (1 << 20) / 1e9)
        raw_trips["polling"].append(perftest("ib_send_lat", 4, "-s", "64", "-n", "500") * 2)
        raw_trips["asleep"].append(perftest("ib_send_lat", 4, "-s", "64", "-n", "500", "-e") * 2)
        # Threads that poll take the processors that software RDMA needs for the reads.
        polling = transport(olbench, "1", "--spin", "5000")
        asleep = transport(olbench, "4")
        reads.append(asleep["verbs_demand_gigabytes_per_second"])
        trips["polling"].append(polling["verbs_round_trip_us"])
        trips["asleep"].append(asleep["verbs_round_trip_us"])
    read, raw_read = statistics.median(reads), statistics.median(raw_reads)
    print(f"2 MiB reads: {read:.3f} GB/s, ib_read_bw {raw_read:.3f}: {read / raw_read:.2f}")
    for name in trips:
        trip, raw_trip = statistics.median(trips[name]), statistics.median(raw_trips[name])
        print(f"64 bytes there and back, {name}: {trip:.1f} us, ib_send_lat {raw_trip:.1f}: "
              f"{trip / raw_trip:.2f}")
    return 0 if read >= 0.9 * raw_read else 1


sys.exit(main(sys.argv[1]))
