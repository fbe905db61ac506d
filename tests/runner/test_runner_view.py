"""What `trimtab view` answers, and to whom; how seldom it looks."""

import http.client
import json
import re
import socket
import time

import pytest
from view_cases import serving, training

import trimtab
from trimtab.errors import RecordError, UsageError
from trimtab.recording import Record
from trimtab.runner import following
from trimtab.runner.following import Follower
from trimtab.runner.serving import Viewer


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    path = tmp_path_factory.mktemp("view") / "run.db"
    with training(path) as train:
        train(6)
    return path


@pytest.fixture(scope="module")
def viewer(record):
    with serving(record) as found:
        yield found


def ask(viewer, target="/", method="GET", host=None, headers=(), body=None):
    connection = http.client.HTTPConnection("127.0.0.1", viewer.server_port, timeout=10)
    try:
        connection.putrequest(method, target, skip_host=True)
        for name, value in [("Host", host or f"127.0.0.1:{viewer.server_port}"), *headers]:
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        answer.text = answer.read().decode()
        return answer
    finally:
        connection.close()


def page(viewer, **more):
    return ask(viewer, f"/?token={viewer.token}", **more)


def state(viewer, since=None, **more):
    target = "/state" if since is None else f"/state?since={since}"
    return ask(viewer, target, headers=[("Authorization", f"Bearer {viewer.token}")], **more)


# ---------------------------------------------------------------------------------------------------- to whom


def test_it_listens_on_this_machine_alone(viewer):
    assert viewer.server_address[0] == "127.0.0.1"
    assert viewer.url == f"http://127.0.0.1:{viewer.server_port}/?token={viewer.token}"
    assert len(viewer.token) >= 43  # 256 bits in base 64


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/?token=",
        "/?token=x",
        "/?token=é",
        "/?token={token}x",
        "/?token={token}&token=x",
        "/state",
        "/run.db",
        "/../run.db",
    ],
)
@pytest.mark.parametrize("headers", [[], [("Authorization", "Bearer nonsense")], [("Authorization", "Bearer é")]])
def test_without_the_token_nothing_is_told(viewer, target, headers):
    target = target.format(token=viewer.token).encode().decode("latin-1")
    if headers or "{token}" not in target:
        answer = ask(viewer, http_quoted(target), headers=headers)
        assert answer.status == 403
        assert "token" in answer.text
        assert "told" not in answer.text.replace("token", "")
        assert len(answer.text) < 200


def http_quoted(target):
    from urllib.parse import quote

    return quote(target, safe="/?=&.-_")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.0.0.1.evil.example:{port}",
        "a@127.0.0.1:{port}",
        "",
    ],
)
def test_other_names_for_this_machine_are_refused(viewer, host):
    for answer in (
        page(viewer, host=host.format(port=viewer.server_port) or " "),
        state(viewer, host=host.format(port=viewer.server_port) or " "),
    ):
        assert answer.status == 403
        assert viewer.token not in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_its_own_names_are_not(viewer, host):
    assert page(viewer, host=host.format(port=viewer.server_port)).status == 200


def test_a_second_host_header_is_refused(viewer):
    assert page(viewer, headers=[("Host", f"127.0.0.1:{viewer.server_port}")]).status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_only_reading_is_allowed(viewer, method):
    answer = page(viewer, method=method)
    assert (answer.status, answer.text, answer.getheader("Allow")) == (405, "", "GET, HEAD")
    assert answer.getheader("Access-Control-Allow-Origin") is None


def test_no_path_is_a_file(viewer):
    for path in ("/run.db", "/page.js", "/../../etc/passwd", "/state/", "/index.html"):
        answer = ask(viewer, f"{path}?token={viewer.token}")
        assert answer.status == 404
        assert answer.getheader("Content-Type").startswith("text/plain")


def test_every_answer_carries_the_headers(viewer):
    for answer in (
        page(viewer),
        state(viewer),
        ask(viewer),
        ask(viewer, "/x"),
        page(viewer, method="POST"),
        state(viewer, "x"),
    ):
        headers = dict(answer.getheaders())
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert headers["Server"] == "trimtab"
        assert "Set-Cookie" not in headers
        assert not [name for name in headers if name.startswith("Access-Control")]


def test_the_page_states_the_policy_that_it_is_served_with(viewer):
    answer = page(viewer)
    stated = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', answer.text)[1]
    policy = answer.getheader("Content-Security-Policy")
    assert stated.replace("&#39;", "'") == policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert viewer.token not in answer.text, "the page can be saved and sent to others"


def test_the_file_that_to_html_writes_may_still_ask_nobody(record):
    text = trimtab.diagnose(record).to_html()
    assert "connect-src" not in text.partition("<body>")[0]
    assert "/state?" not in text


def test_head_is_get_without_a_body(viewer):
    whole, head = page(viewer), page(viewer, method="HEAD")
    assert (head.status, head.text) == (200, "")
    assert head.getheader("Content-Length") == str(len(whole.text.encode()))


def test_a_body_is_not_taken_for_another_request(viewer):
    smuggled = f"GET /state HTTP/1.1\r\nHost: 127.0.0.1:{viewer.server_port}\r\nAuthorization: Bearer {viewer.token}\r\n\r\n".encode()
    answer = ask(viewer, "/", headers=[("Content-Length", str(len(smuggled)))], body=smuggled)
    assert answer.status == 403
    assert answer.getheader("Connection") == "close"


def test_half_open_and_slow_readers_hold_up_nobody(viewer):
    idle = [socket.create_connection(("127.0.0.1", viewer.server_port)) for _ in range(20)]
    try:
        for one in idle[:10]:
            one.sendall(b"GET / HTTP/1.1\r\nHost:")
        for one in idle[10:15]:  # and these never read what they have asked for
            one.sendall(f"GET /?token={viewer.token} HTTP/1.1\r\nHost: 127.0.0.1:{viewer.server_port}\r\n\r\n".encode())
        begin = time.monotonic()
        assert page(viewer).status == 200
        assert time.monotonic() - begin < 2
    finally:
        for one in idle:
            one.close()


def test_requests_are_not_logged(viewer, capfd):
    page(viewer)
    ask(viewer, "/x")
    with socket.create_connection(("127.0.0.1", viewer.server_port)) as one:
        one.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert b"400" in one.recv(1000)
    assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------------------------------------------- where


def test_an_address_that_was_asked_for_is_a_name_of_it(record):
    with serving(record, host="0.0.0.0") as viewer:
        port = viewer.server_port
        assert viewer.url.startswith(f"http://127.0.0.1:{port}/")
        assert viewer.serves(f"192.0.2.7:{port}")
        assert viewer.serves(f"{socket.gethostname()}:{port}")
        assert not viewer.serves(f"evil.example:{port}")
        assert not viewer.serves(f"192.0.2.7:{port + 1}")
    with serving(record, host="127.0.0.2") as viewer:
        assert viewer.serves(f"127.0.0.2:{viewer.server_port}")
        assert not viewer.serves(f"192.0.2.7:{viewer.server_port}")


def test_a_place_that_is_none_is_refused_in_words(record, viewer):
    with pytest.raises(UsageError, match=f"cannot listen at port {viewer.server_port} of 127.0.0.1.*--port"):
        Viewer(record, port=viewer.server_port)
    with pytest.raises(UsageError, match=r"cannot listen at port 0 of nowhere\.invalid"):
        Viewer(record, host="nowhere.invalid")


def test_what_is_no_record_is_refused(tmp_path):
    with pytest.raises(RecordError, match="no record at"):
        Viewer(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("hello")
    with pytest.raises(RecordError, match="not a record of trimtab"):
        Viewer(tmp_path / "text.db")


# ---------------------------------------------------------------------------------------------------- what is new


def test_an_ended_run_is_told_once_and_for_all(viewer):
    news = json.loads(state(viewer).text)
    assert set(news) == {"html", "charts", "live"}
    assert news["live"]["state"] == "over"
    assert news["live"]["again"] is None
    assert news["live"]["far"].startswith("6 steps, loss ")
    answer = state(viewer, news["live"]["version"])
    assert (answer.status, answer.text, answer.getheader("Content-Type")) == (204, "", None)
    assert state(viewer, "another-server.0.0f").status == 200


def test_the_loss_that_is_told_is_the_record_s(record, viewer):
    loss = next(chart for chart in json.loads(state(viewer).text)["charts"] if chart["key"] == "loss")
    assert loss["curves"][0]["y"] == pytest.approx(Record.open(record).losses.tolist(), rel=1e-5)


def told(follower, since=None):
    """All that is new, whatever a look takes."""
    end = time.monotonic() + 5
    news = None
    while time.monotonic() < end and news is None:
        answer = follower.state(since)
        news = None if answer is None else json.loads(answer)
        if news is not None and "html" not in news:
            since, news = news["live"]["version"], None
        time.sleep(0.02)
    return news


def test_a_record_that_has_not_changed_is_not_read(tmp_path):
    path = tmp_path / "run.db"
    with training(path) as train:
        train(5)
        time.sleep(0.1)  # what has just been written may be written again at the same time of the clock
        follower = Follower(path)
        news = told(follower)
        assert news["live"]["state"] == "following"
        looks = follower.looks
        for _ in range(30):
            assert follower.state(news["live"]["version"]) is None
            time.sleep(0.01)
        assert follower.looks == looks
        train(1)
        more = told(follower, news["live"]["version"])
        assert more["live"]["far"].startswith("5 steps")
        assert follower.looks > looks
    assert told(follower, more["live"]["version"])["live"]["far"].startswith("6 steps")


def test_looks_take_a_sixth_of_a_core_at_most_and_the_step_is_told_between_them(tmp_path, monkeypatch):
    path, took = tmp_path / "run.db", 0.15
    real = following.diagnose

    def dear(record):
        end = time.thread_time() + took
        while time.thread_time() < end:
            pass
        return real(record)

    monkeypatch.setattr(following, "diagnose", dear)
    with training(path) as train:
        train(2)
        follower = Follower(path)
        begin, versions = time.monotonic(), set()
        while time.monotonic() - begin < 2.5:
            train(1)
            versions.add(json.loads(follower.state() or "{}")["live"]["version"])
            time.sleep(0.01)
        spent = time.monotonic() - begin
    assert 2 <= follower.looks <= 2 + spent / (took * (1 + following.REST))  # no rest after the first
    assert len(versions) > 2 * follower.looks


def test_readers_share_a_look(tmp_path, record):
    with serving(record) as viewer:
        for _ in range(5):
            page(viewer)
            state(viewer)
        assert viewer.follower.looks == 1


def test_a_record_that_breaks_is_told_and_what_was_shown_stays(tmp_path, record):
    path = tmp_path / "copy.db"
    path.write_bytes(record.read_bytes())
    follower = Follower(path)
    first = told(follower)
    path.write_bytes(b"nothing of the kind")
    broken = json.loads(follower.state(first["live"]["version"]))
    assert broken["live"]["state"] == "lost"
    assert "not a record of trimtab" in broken["live"]["text"]
    assert b"<h1>" in follower.page()[0]
    path.unlink()
    assert "no longer there" in json.loads(follower.state())["live"]["text"]


def test_a_record_that_is_damaged_inside_is_told(tmp_path, record):
    path = tmp_path / "damaged.db"
    content = bytearray(record.read_bytes())
    content[3 * 8192 :] = b"\xff" * (len(content) - 3 * 8192)
    path.write_bytes(content)
    try:
        follower = Follower(path)
    except RecordError:
        return
    assert follower.page() is None
    with serving(path) as viewer:
        answer = page(viewer)
        assert answer.status == 503
        assert "damaged" in answer.text


def test_a_fault_of_a_rule_is_told_once(tmp_path, record, monkeypatch):
    def broken(record):
        raise ZeroDivisionError("of a rule")

    monkeypatch.setattr(following, "diagnose", broken)
    follower = Follower(record)
    assert follower.page() is None
    news = json.loads(follower.state())
    assert news["live"]["text"].startswith("the diagnosis failed (ZeroDivisionError: of a rule)")
    time.sleep(0.1)
    looks = follower.looks
    follower.state()
    assert follower.looks == looks


def test_following_does_not_hold_the_record(tmp_path):
    path = tmp_path / "run.db"
    with training(path) as train:
        train(5)
        follower = Follower(path)
        told(follower)
        begin = time.monotonic()
    assert time.monotonic() - begin < 1, "the run waited for its viewer"
    assert not (tmp_path / "run.db-wal").exists(), "the record was not made one file"
