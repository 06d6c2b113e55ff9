"""The console in headless Chromium: each page, each action, wrong logins, a node that dies while it is watched, markup in
names, phone width, keyboard; and pages of other origins, which reach nothing.

STAVE is the binary, PICTURES the folder for screenshots.
"""

import http.server
import json
import os
import tempfile
import threading
import unittest

from browser import ENTER, TAB, Browser
from server import Kv, Server

STAVE = os.environ["STAVE"]
PICTURES = os.environ.get("PICTURES", "pictures")
PAGES = ["overview", "nodes", "buckets", "documents", "streams", "timings", "slow", "logs", "users"]
MARKUP = "<img src=x onerror=\"window.pwned=1\"><script>window.pwned=1</script>"


def setUpModule():
    global browser
    browser = Browser(PICTURES)


def tearDownModule():
    browser.close()


def log_in(server, user="Administrator", password="password"):
    browser.open("about:blank")
    browser.open(f"http://{server.http}/ui")
    browser.type("input[name=user]", user)
    browser.type("input[name=password]", password)
    browser.click("#login button[type=submit]")
    browser.says(user, "#who")


def visit(page):
    browser.js("location.hash = arguments[0]", f"#/{page}")
    browser.until("return document.querySelector(`#nav-${arguments[0].split('/')[0]}[aria-current]`)", page)
    browser.until("const page = document.getElementById('page'); return !page.hasAttribute('aria-busy') && page.innerText.length > 20")


class OneNode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.data = tempfile.TemporaryDirectory()
        cls.server = Server(STAVE, "serve", "--data", cls.data.name)
        kv = Kv(cls.server.kv)
        for number in range(120):
            kv.set(f"order-{number:03}", json.dumps({"number": number, "paid": number % 3 == 0}))
        kv.close()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.data.cleanup()

    def setUp(self):
        browser.size(1280, 900)
        browser.scheme("light")
        browser.complaints()

    def tearDown(self):
        self.assertEqual(browser.complaints(), [])
        self.assertIsNone(browser.js("return window.pwned || null"))

    def test_login_by_keyboard_alone(self):
        browser.open(f"http://{self.server.http}/ui")
        browser.find("#login")
        timing = browser.js("return performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
        print(f"first page: {timing:.0f} ms", flush=True)
        browser.keys(*"Administrator", TAB, *"wrong", ENTER)
        browser.says("User or password is wrong.", "#login-problem")
        self.assertEqual(browser.js("return document.querySelector('#who')"), None)
        browser.picture("login-wrong")
        # The password has the focus, and is empty.
        browser.keys(*"password", ENTER)
        browser.says("Administrator", "#who")
        for _ in range(30):
            browser.keys(TAB)
            if browser.js("return document.activeElement.id") == "nav-users":
                break
        browser.keys(ENTER)
        browser.says("Roles", "#page")
        browser.click_text("button", "Log out")
        browser.find("#login")
        self.assertEqual(browser.js("return Object.keys(localStorage).length + Object.keys(sessionStorage).length + document.cookie.length"), 0)

    def test_each_page_shows_something_in_light_and_dark_and_on_a_phone(self):
        log_in(self.server)
        for page in PAGES:
            visit(page)
            if page == "overview":
                browser.says("Latency at the server", "#page")
            self.assertEqual(browser.text("#page-problem"), "", page)
            browser.picture(f"{page}-light")
        browser.scheme("dark")
        for page in PAGES:
            visit(page)
            browser.picture(f"{page}-dark")
        browser.size(360, 740, mobile=True)
        for page in PAGES:
            visit(page)
            if page == "documents":
                browser.type("#key", "order-001")
                browser.click_text("#find button", "Find")
                browser.says("order-001", "#shown-key")
            width = browser.js("return [document.documentElement.scrollWidth, window.innerWidth]")
            self.assertLessEqual(width[0], 360, f"{page} is wider than the screen")
            self.assertEqual(width[1], 360)
            low = browser.js("""
                const met = [...document.querySelectorAll('nav a, header button, header select, #page button, #page a.button, #page select')];
                const seen = met.filter((one) => one.getClientRects().length && getComputedStyle(one).visibility === 'visible');
                return seen.filter((one) => one.getBoundingClientRect().height < 44).map((one) => one.outerHTML.slice(0, 90))""")
            self.assertEqual(low, [], f"{page}: lower than 44 px")
            browser.picture(f"{page}-phone")

    def test_the_log_is_shown_and_searched(self):
        log_in(self.server)
        visit("logs")
        browser.says("started", "#page table")
        browser.type("#log-words", "no line has this")
        browser.says("No such line.", "#page")

    def test_documents_are_made_found_changed_and_deleted(self):
        log_in(self.server)
        visit("documents")
        browser.type("#prefix", "order-01")
        browser.click_text("#browse button", "List")
        browser.says("order-019", ".list")
        self.assertNotIn("order-020", browser.text(".list"))
        browser.click("#new")
        browser.field("Key", "made here")
        browser.field("Value (JSON)", "{not json")
        browser.submit(closes=False)
        browser.says("JSON", "dialog")
        browser.field("Value (JSON)", '{"a": 1}')
        browser.submit()
        browser.says("made here", "#shown-key")
        kv = Kv(self.server.kv)
        kv.set_xattr("made here", "shown", '{"by": "a test"}')
        kv.close()
        browser.click_text("button", "Read again")
        browser.says("a test", "#xattrs")
        browser.type("#value", '{"a": 2}')
        browser.click("#save")
        browser.says("The document was saved.", "#toast")
        self.assertEqual(json.loads(self.document("made here")["text"]), {"a": 2})
        self.assertEqual(self.document("made here")["xattrs"], {"shown": {"by": "a test"}}, "attributes stay")
        # Another client changes it: what is in the page is not stored over that.
        present = self.document("made here")
        self.assertEqual(self.server.put("made here", '{"a": 3}', {"If-Match": present["cas"]})[0], 200)
        browser.type("#value", '{"a": 4}')
        browser.click("#save")
        browser.says("was changed since it was read", "#document-problem")
        self.assertEqual(browser.text("#toast"), "", "that it was saved before is not told beside that")
        browser.picture("document-conflict")
        self.assertEqual(json.loads(self.document("made here")["text"]), {"a": 3})
        browser.click_text("button", "Read again")
        browser.until("return document.querySelector('#value')?.value.includes('3')")
        browser.picture("document")
        browser.click("#delete")
        browser.click_text("dialog button", "Cancel")
        self.assertEqual(self.document("made here")["key"], "made here")
        browser.click("#delete")
        browser.submit()
        browser.says("The document was deleted.", "#toast")
        browser.type("#key", "made here")
        browser.click_text("#find button", "Find")
        browser.says("no such document", "#document-problem")

    def test_a_bucket_without_history_tells_where_a_document_is_in_its_stream(self):
        self.assertEqual(self.server.put("told of", '{"a": 1}')[0], 200)
        log_in(self.server)
        visit("documents")
        browser.type("#key", "told of")
        browser.click("#history")
        browser.says("keeps no history", "#history-kind")
        browser.says("mutation", "#versions")
        self.assertEqual(browser.js("return document.querySelectorAll('#versions tbody tr').length"), 1)
        seqno = self.document("told of")["meta"]["seqno"]
        browser.says(str(int(seqno, 16)) if str(seqno).startswith("0x") else str(seqno), "#versions")
        browser.click("#versions [data-version]")
        browser.says('"a": 1', "#version")
        present = {"If-Match": self.document("told of")["cas"]}
        self.assertEqual(self.server.ask("DELETE", "/v1/buckets/default/document?key=told%20of", headers=present)[0], 200)
        browser.click_text(".document button", "Read again")
        browser.says("deletion", "#versions")
        browser.says("deleted", ".document .facts")
        browser.type("#key", "never was")
        browser.click("#history")
        browser.says("No change of this key", "#versions")

    def test_the_history_of_a_document_has_its_versions(self):
        made = self.server.ask("POST", "/pools/default/buckets", "name=kept&ramQuota=128&storageBackend=magma&historyRetentionSeconds=3600", {"Content-Type": "application/x-www-form-urlencoded"})
        self.assertEqual(made[0], 202, made)
        path = "/v1/buckets/kept/document?key=changed"
        present = None
        for number in range(3):
            value = json.dumps({"number": number, "markup": MARKUP})
            self.assertEqual(self.server.put("changed", value, present, bucket="kept")[0], 200)
            present = {"If-Match": self.server.json(path)["cas"]}
        self.assertEqual(self.server.ask("DELETE", path, headers=present)[0], 200)
        log_in(self.server)
        visit("documents")
        browser.js("const of = document.getElementById('bucket'); of.value = 'kept'; of.dispatchEvent(new Event('change'))")
        browser.until("return location.hash && document.querySelector('#bucket').value === 'kept' && !document.getElementById('page').hasAttribute('aria-busy')")
        browser.type("#key", "changed")
        browser.click_text("#find button", "Find")
        browser.says("no such document", "#document-problem")
        browser.click("#history")
        browser.says("newest first", "#history-kind")
        kinds = browser.js("return [...document.querySelectorAll('#versions tbody tr')].map((row) => row.cells[0].innerText)")
        self.assertEqual(kinds, ["deletion", "mutation", "mutation", "mutation"])
        browser.js("[...document.querySelectorAll('[data-version]')].at(-1).click()")
        browser.says('"number": 0', "#version")
        browser.says(MARKUP.replace('"', '\\"'), "#version")
        browser.picture("history")
        self.server.ask("DELETE", "/pools/default/buckets/kept")

    def document(self, key):
        return self.server.json(f"/v1/buckets/default/document?key={key.replace(' ', '%20')}")

    def test_pages_of_keys_have_all_of_them_once(self):
        log_in(self.server)
        visit("documents")
        browser.type("#prefix", "order-")
        browser.click_text("#browse button", "List")
        browser.until("return document.querySelectorAll('.list li').length === 50")
        browser.click("#more")
        browser.until("return document.querySelectorAll('.list li').length === 100")
        browser.click("#more")
        browser.until("return document.querySelectorAll('.list li').length === 120 && !document.querySelector('#more')")
        self.assertEqual(browser.js("return new Set([...document.querySelectorAll('.list li')].map((one) => one.innerText)).size"), 120)

    def test_markup_in_keys_values_and_names_is_text(self):
        self.assertEqual(self.server.put(MARKUP, json.dumps({"x": MARKUP}))[0], 200)
        quoted = json.dumps(MARKUP)
        self.assertEqual(self.server.ask("PUT", "/settings/rbac/users/local/bold", f"password=password&roles=admin&name=%3Cimg%20src%3Dx%20onerror%3Dwindow.pwned%3D1%3E", {"Content-Type": "application/x-www-form-urlencoded"})[0], 200)
        log_in(self.server)
        visit("documents")
        browser.type("#prefix", "<img")
        browser.click_text("#browse button", "List")
        browser.click_text("button.key", MARKUP)
        browser.says(MARKUP, "#shown-key")
        browser.until("return document.querySelector('#value').value.includes(arguments[0])", quoted[1:-1])
        browser.picture("markup")
        visit("users")
        browser.says("<img src=x onerror=window.pwned=1>", "#page")
        self.assertEqual(browser.js("return document.querySelectorAll('#page img, #page script').length"), 0)
        self.server.ask("DELETE", "/settings/rbac/users/local/bold")

    def test_buckets_are_made_changed_and_deleted(self):
        log_in(self.server)
        visit("buckets")
        browser.click("#create-bucket")
        browser.field("Name", "made")
        browser.field("Memory for each node (MiB)", "0")
        browser.js("document.querySelector('dialog form').noValidate = true")
        browser.submit(closes=False)
        browser.says("ramQuota", "dialog")
        browser.field("Memory for each node (MiB)", "128")
        browser.field("May be flushed", "1")
        browser.picture("bucket-form")
        browser.submit()
        browser.click("[data-edit=made]")
        browser.field("Max TTL (s)", "77")
        browser.submit()
        self.assertEqual(self.server.json("/pools/default/buckets/made")["maxTTL"], 77)
        browser.js("const of = document.getElementById('bucket'); of.value = 'made'; of.dispatchEvent(new Event('change'))")
        browser.says("Settings of made", "#page")
        browser.click("[data-setting=slow_operation_threshold]")
        browser.find("dialog input")
        browser.type("dialog input", "-5")
        browser.submit(closes=False)
        browser.says("slow_operation_threshold", "dialog .problem")
        browser.type("dialog input", "1234")
        browser.submit()
        browser.says("1234", "#page")
        browser.click("#add-scope")
        browser.field("Name", "things")
        browser.submit()
        browser.click("[data-add=things]")
        browser.field("Name", "small")
        browser.submit()
        browser.find("[data-drop=small]")
        browser.picture("collections")
        browser.click("[data-drop=small]")
        browser.submit()
        browser.until("return !document.querySelector('[data-drop=small]')")
        self.assertEqual(self.server.put("gone", "{}", bucket="made")[0], 200)
        row = "[...document.querySelectorAll('tr')].find((one) => one.querySelector('[data-edit=made]'))"
        browser.js(f"[...{row}.querySelectorAll('button')].find((one) => one.innerText === 'Flush…').click()")
        browser.field("Type made to confirm", "made")
        browser.submit()
        self.assertEqual(self.server.ask("GET", "/v1/buckets/made/document?key=gone")[0], 404)
        browser.click("[data-delete=made]")
        browser.field("Type made to confirm", "default")
        browser.submit(closes=False)
        browser.says("not the name", "dialog")
        browser.field("Type made to confirm", "made")
        browser.submit()
        browser.until("return !document.querySelector('[data-edit=made]')")
        self.assertEqual(self.server.ask("GET", "/pools/default/buckets/made")[0], 404)
        # A dialog closes with its page.
        browser.click("#create-bucket")
        browser.find("dialog")
        browser.js("location.hash = '#/users'")
        browser.until("return !document.querySelector('dialog')")

    def test_users_and_groups_are_made_changed_and_deleted(self):
        log_in(self.server)
        visit("users")
        browser.click("#create-group")
        browser.field("Name", "readers")
        browser.field("Roles", "data_reader[default]")
        browser.submit()
        browser.find("[data-edit-group=readers]")
        browser.click("#create-user")
        browser.field("Name", "ada")
        browser.field("Password", "secret-1")
        browser.field("Roles", "no_such_role")
        browser.submit(closes=False)
        browser.says("no_such_role", "dialog")
        browser.field("Roles", "")
        browser.field("Groups", "readers")
        browser.submit()
        browser.find("[data-edit=ada]")
        browser.picture("users")
        # A reader sees documents, and is told what it may not.
        log_in(self.server, "ada", "secret-1")
        visit("documents")
        browser.type("#key", "order-007")
        browser.click_text("#find button", "Find")
        browser.until("return document.querySelector('#value')?.value.includes('7')")
        browser.type("#value", '{"stolen": true}')
        browser.click("#save")
        browser.says("Forbidden", "#document-problem")
        self.assertEqual(json.loads(self.document("order-007")["text"])["number"], 7)
        visit("users")
        browser.says("Forbidden", "#page-problem")
        log_in(self.server)
        visit("users")
        browser.click("[data-edit=ada]")
        browser.field("Full name", "Ada L.")
        browser.submit()
        browser.says("Ada L.", "#page")
        browser.click("[data-delete=ada]")
        browser.submit()
        browser.until("return !document.querySelector('[data-edit=ada]')")
        browser.click("[data-delete-group=readers]")
        browser.submit()
        browser.until("return !document.querySelector('[data-edit-group=readers]')")

    def test_a_page_can_run_no_script_but_its_own(self):
        browser.open(f"http://{self.server.http}/ui")
        browser.find("#login")
        browser.js("""
            const inline = document.createElement('script');
            inline.textContent = 'window.pwned = 1';
            document.body.append(inline);
            const image = document.createElement('div');
            image.innerHTML = '<img src="/ui/nothing" onerror="window.pwned = 1"><p style="color: red">x</p>';
            document.body.append(image);""")
        browser.until("return document.querySelector('body img[onerror]')")
        refused = browser.complaints()
        self.assertTrue(any("Content Security Policy" in one for one in refused), refused)

    def test_a_node_that_dies_is_told_of_and_comes_back(self):
        log_in(self.server)
        visit("overview")
        self.server.kill()
        browser.says("has not answered since", "#banner")
        browser.picture("node-dead")
        self.server.start()
        browser.until("return document.getElementById('banner').hidden", what="end of the banner")
        visit("documents")
        browser.type("#key", "order-003")
        browser.click_text("#find button", "Find")
        browser.says("order-003", "#shown-key")
        browser.complaints()


class Sums(unittest.TestCase):
    """How the overview puts samples of several nodes together."""

    @classmethod
    def setUpClass(cls):
        cls.data = tempfile.TemporaryDirectory()
        cls.server = Server(STAVE, "serve", "--data", cls.data.name)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.data.cleanup()

    def together(self, *nodes):
        """Times and sums of documents; a gap has none. Each node: whether it answers no more, and the times of its samples."""
        browser.open(f"http://{self.server.http}/ui")
        browser.find("#login")
        rows = browser.js("""
            return import('/ui/overview.js').then(({ together }) => together(arguments[0].map(([gone, times]) => ({ gone,
              samples: times.map((at_s) => ({ at_s, over_ms: 5000, gets: 50, documents: 10 })) })), 5).map((row) => [row.at, row.gap ? null : row.documents]))""",
            [[gone, list(times)] for gone, times in nodes])
        return dict(rows)

    def test_what_a_node_told_before_it_died_stays(self):
        sums = self.together((False, range(1000, 1061, 5)), (True, range(1002, 1033, 5)))
        self.assertEqual([sums[at] for at in (1000, 1030, 1040, 1045, 1060)], [20, 20, None, 10, 10])

    def test_a_sample_that_is_missing_is_a_gap(self):
        sums = self.together((False, range(1000, 1061, 5)), (False, [1000, 1005, 1010, 1025, 1030, 1060]))
        self.assertEqual([sums[at] for at in (1010, 1015, 1020, 1025)], [20, None, None, 20])
        # It was away for longer: sums are of the other one, with gaps where it went and came.
        self.assertEqual([sums[at] for at in (1030, 1035, 1040, 1050, 1055, 1060)], [20, None, 10, 10, None, 20])

    def test_times_that_are_a_little_off_are_no_gap(self):
        sums = self.together((False, [1000, 1005, 1012, 1015, 1023, 1025]), (False, range(1000, 1026, 5)))
        self.assertEqual(set(sums.values()), {20})

    def test_a_node_that_has_not_told_yet_is_waited_for(self):
        sums = self.together((False, range(1000, 1061, 5)), (False, range(1000, 1041, 5)))
        self.assertEqual((max(sums), set(sums.values())), (1040, {20}))


class ThreeNodes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(STAVE, "dev", "--nodes", "3", "--replicas", "1", "--control", "127.0.0.1:0")
        for number in range(60):
            cls.server.put(f"k{number}", "{}")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def setUp(self):
        browser.size(1280, 900)
        browser.scheme("light")
        browser.complaints()

    def test_failover_and_rebalance(self):
        log_in(self.server)
        visit("nodes")
        browser.says("n_3: ", ".keys")
        browser.picture("nodes-cluster")
        row = "[...document.querySelectorAll('#page tr')].find((one) => one.innerText.startsWith('n_2'))"
        browser.until(f"return {row}?.querySelector('[data-act=failover]')")
        browser.js(f"{row}.querySelector('[data-act=failover]').click()")
        browser.click_text("dialog button", "Cancel")
        self.assertEqual({node["clusterMembership"] for node in self.server.json("/pools/default")["nodes"]}, {"active"})
        browser.js(f"{row}.querySelector('[data-act=failover]').click()")
        browser.field("How", "graceful")
        browser.picture("failover")
        browser.submit()
        browser.says("failed over", "#page")
        browser.until("return !document.querySelector('.keys')?.innerText.includes('n_2')")
        browser.until(f"return {row}?.querySelector('[data-act=recover]')")
        browser.js(f"{row}.querySelector('[data-act=recover]').click()")
        browser.submit()
        browser.click("#rebalance")
        browser.submit()
        browser.until("return document.querySelector('.keys')?.innerText.includes('n_2') && !document.querySelector('.progress')")
        browser.picture("nodes-again")
        self.assertEqual(browser.complaints(), [])

    def test_documents_and_figures_of_all_nodes(self):
        log_in(self.server)
        visit("documents")
        nodes = set()
        for number in range(60):
            answer = self.server.json(f"/v1/buckets/default/document?key=k{number}")
            nodes.add(answer["node"])
        self.assertEqual(nodes, {"n_1", "n_2", "n_3"})
        browser.until("return document.querySelectorAll('.list li').length === 50")
        browser.click("#more")
        browser.until("return document.querySelectorAll('.list li').length === 60")
        visit("streams")
        browser.says("n_3", "#page")
        browser.says("replication", "#page")
        browser.picture("streams-cluster")
        visit("timings")
        browser.picture("timings-cluster")
        visit("overview")
        browser.says("Latency at the server", "#page")
        self.assertEqual(browser.text("#page .note"), "", "all nodes told of their figures")
        browser.js("const of = document.getElementById('node'); of.value = 'n_2'; of.dispatchEvent(new Event('change'))")
        browser.says("Latency at the server", "#page")
        browser.picture("overview-cluster")


class OtherOrigin(unittest.TestCase):
    """A page at another port of this machine tries to drive `stave dev`, as any site could that a developer visits."""

    def test_a_page_of_another_origin_reaches_nothing(self):
        server = Server(STAVE, "dev", "--nodes", "2", "--control", "127.0.0.1:0")
        self.addCleanup(server.stop)

        class Page(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"<!doctype html><title>other</title><body>")

            def log_message(self, *_):
                pass

        site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        threading.Thread(target=site.serve_forever, daemon=True).start()
        self.addCleanup(site.server_close)
        self.addCleanup(site.shutdown)
        before = [server.json("/pools/default")["nodes"][at]["clusterMembership"] for at in range(2)], self.names(server)
        tried = []
        for host in ("127.0.0.1", "localhost"):
            browser.open(f"http://{host}:{site.server_port}/")
            tried += browser.do("/execute/async", {"script": ATTACKS, "args": [server.http, server.control]})
        after = [server.json("/pools/default")["nodes"][at]["clusterMembership"] for at in range(2)], self.names(server)
        self.assertEqual(before, after)
        reached = [one for one in tried if one[1] not in ("blocked", "opaque")]
        self.assertEqual(reached, [], "a page of another origin has read an answer")
        self.assertGreater(len(tried), 10)
        # A form of it, with the name and the password in the address: the browser sends it, and the node refuses it.
        for action, field in ((f"http://Administrator:password@{server.http}/pools/default/buckets", "stolen"), (f"http://{server.control}/v1/dev/nodes/2/kill", "x")):
            browser.open(f"http://127.0.0.1:{site.server_port}/")
            browser.js(FORM, action, field)
            browser.until("return location.port !== arguments[0]", str(site.server_port), what="answer to the form")
            browser.says("may not")
        self.assertEqual(before, ([node["clusterMembership"] for node in server.json("/pools/default")["nodes"]], self.names(server)))
        self.assertEqual({node["status"] for node in server.json("/pools/default")["nodes"]}, {"healthy"})

    @staticmethod
    def names(server):
        return sorted(bucket["name"] for bucket in server.json("/pools/default/buckets"))


FORM = """
    const form = document.createElement('form');
    form.method = 'POST';
    form.action = arguments[0];
    for (const [name, value] of [['name', arguments[1]], ['ramQuotaMB', '100'], ['replicaNumber', '0']]) {
        const input = document.createElement('input');
        Object.assign(input, { name, value });
        form.append(input);
    }
    document.body.append(form);
    form.submit();"""

ATTACKS = """
    const [http, control, done] = arguments;
    const authorization = 'Basic ' + btoa('Administrator:password');
    const form = new URLSearchParams({ name: 'stolen', ramQuotaMB: '100', replicaNumber: '0' });
    const tries = [];
    for (const mode of ['cors', 'no-cors']) {
        for (const credentials of ['include', 'omit']) {
            tries.push([`http://${http}/pools/default/buckets`, { method: 'POST', body: form, mode, credentials }]);
            tries.push([`http://${http}/controller/failOver`, { method: 'POST', body: new URLSearchParams({ otpNode: 'n_2', allowUnsafe: 'true' }), mode, credentials }]);
            tries.push([`http://${control}/v1/dev/nodes/2/kill`, { method: 'POST', mode, credentials }]);
            tries.push([`http://${control}/v1/dev/nodes/2/failover`, { method: 'POST', mode, credentials }]);
            tries.push([`http://${http}/ui`, { mode, credentials }]);
        }
    }
    tries.push([`http://${http}/pools/default/buckets`, { method: 'POST', body: form, headers: { Authorization: authorization } }]);
    tries.push([`http://${http}/v1/buckets/default/documents`, { headers: { Authorization: authorization } }]);
    Promise.all(tries.map(async ([url, options]) => {
        try {
            const answer = await fetch(url, options);
            return [url, answer.type === 'opaque' ? 'opaque' : `read ${answer.status}`];
        } catch (error) {
            return [url, 'blocked'];
        }
    })).then(done);"""


if __name__ == "__main__":
    unittest.main(verbosity=2)
