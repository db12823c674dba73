"""Makes the CPU it runs on busy with softirq NET_RX: packets to the loopback device, each handed to many sockets whose filter takes
long to refuse it. Nothing leaves the host. Usage: flood.py SOCKETS; ends with its parent."""

import ctypes
import os
import signal
import socket
import struct
import sys

PR_SET_PDEATHSIG = 1
ETH_P_IP = 0x0800
SO_ATTACH_FILTER = 26
SENDER = os.getppid()

ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != SENDER:
    sys.exit(0)

# BPF_ALU | BPF_ADD | BPF_K, many times; then BPF_RET | BPF_K of 0 bytes.
steps = [struct.pack("HBBI", 0x04, 0, 0, 1)] * 4000 + [struct.pack("HBBI", 0x06, 0, 0, 0)]
program = ctypes.create_string_buffer(b"".join(steps))
attached = struct.pack("HL", len(steps), ctypes.addressof(program))

listeners = []
for _ in range(int(sys.argv[1])):
    listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, attached)
    listener.bind(("lo", ETH_P_IP))
    listeners.append(listener)

# Somebody takes the packets, so that no answer says that nobody does.
sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sink.bind(("127.0.0.1", 0))
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.connect(sink.getsockname())
while True:
    sender.send(b"x")
