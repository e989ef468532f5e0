"""What this process has open is found by its port; connections are ended, and a listener looks up more often."""

import os
import socket

from kvtransfer.transports.tcp_ports import hang_up, hurry, listening


def opened() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_listener_is_found_while_it_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert port in listening()
    assert port not in listening()


def test_those_connected_to_one_port_are_hung_up_on_and_nobody_else() -> None:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    clients = [socket.create_connection(server.getsockname(), timeout=60) for server in servers]
    taken = [server.accept()[0] for server in servers]
    before = opened()
    hang_up(servers[0].getsockname()[1])
    assert opened() == before, "no handle is left"
    assert clients[0].recv(1) == b""
    taken[1].sendall(b"x")
    assert clients[1].recv(1) == b"x"
    with socket.create_connection(servers[0].getsockname(), timeout=60):
        assert servers[0].accept()[0].close() is None, "it still listens"
    for one in (*servers, *clients, *taken):
        one.close()


def test_a_listener_in_a_hurry_gives_up_by_itself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(True)
        hurry(server.getsockname()[1], 0.0)
        try:
            server.accept()
        except BlockingIOError:
            return
        raise AssertionError("somebody has connected")
