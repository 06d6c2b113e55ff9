"""A browser by WebDriver (W3C), which is JSON over HTTP: the standard library is enough. Chromium and its driver come from
the distribution."""

import base64
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request

WAIT_S = float(os.environ.get("WAIT_S", "20"))
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
TAB, ENTER = "\ue004", "\ue007"


class Missing(AssertionError):
    """What was waited for did not come."""


class Browser:
    def __init__(self, pictures):
        self.pictures = pictures
        os.makedirs(pictures, exist_ok=True)
        driver = shutil.which("chromedriver")
        assert driver, "chromedriver is missing: install the package chromium-driver"
        self.driver = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.driver.stdout:
            found = re.search(r"started successfully on port (\d+)", line)
            if found:
                break
        else:
            raise AssertionError("chromedriver ended before it was ready")
        self.base = f"http://127.0.0.1:{found[1]}"
        options = {
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"],
            "prefs": {"credentials_enable_service": False},
        }
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}, "unhandledPromptBehavior": "ignore"}
        self.session = f"/session/{self.ask('POST', '/session', {'capabilities': {'alwaysMatch': wanted}})['sessionId']}"
        self.size(1280, 900)

    def close(self):
        try:
            self.ask("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait()
            self.driver.stdout.close()

    def ask(self, method, path, body=None):
        data = None if method == "GET" or method == "DELETE" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.base + path, data=data, method=method, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            told = json.load(error)["value"]
            raise Missing(f"{method} {path}: {told['error']}: {told['message'].splitlines()[0]}") from None

    def do(self, path, body=None, method="POST"):
        return self.ask(method, self.session + path, body)

    def cdp(self, command, params=None):
        return self.do("/goog/cdp/execute", {"cmd": command, "params": params or {}})

    def size(self, width, height, mobile=False):
        self.cdp("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile})

    def scheme(self, name):
        self.cdp("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def open(self, url):
        self.do("/url", {"url": url})

    def js(self, script, *args):
        return self.do("/execute/sync", {"script": script, "args": list(args)})

    def until(self, script, *args, what=None):
        """Waits until a script returns something true, and returns that."""
        end = time.monotonic() + WAIT_S
        while True:
            found = self.js(script, *args)
            if found:
                return found
            if time.monotonic() > end:
                self.picture("missing")
                raise Missing(f"within {WAIT_S} s there was no {what or script}; the page says: {self.text()[:600]!r}")
            time.sleep(0.05)

    def find(self, css):
        return self.until("return document.querySelector(arguments[0])", css, what=css)[ELEMENT]

    def with_text(self, css, text):
        script = "return [...document.querySelectorAll(arguments[0])].find((one) => one.textContent.trim() === arguments[1])"
        return self.until(script, css, text, what=f"{css} with {text!r}")[ELEMENT]

    def says(self, text, css="body"):
        return self.until("return document.querySelector(arguments[0])?.innerText.includes(arguments[1])", css, text, what=f"{text!r} in {css}")

    def says_no_more(self, text, css="body"):
        return self.until("return !document.querySelector(arguments[0])?.innerText.includes(arguments[1])", css, text, what=f"end of {text!r} in {css}")

    def text(self, css="body"):
        return self.js("return document.querySelector(arguments[0])?.innerText || ''", css)

    def press(self, element):
        self.js("arguments[0].scrollIntoView({ block: 'center' })", {ELEMENT: element})
        self.do(f"/element/{element}/click")

    def click(self, css):
        self.press(self.find(css))

    def click_text(self, css, text):
        self.press(self.with_text(css, text))

    def type(self, css, text, clear=True):
        element = self.find(css)
        if clear:
            self.do(f"/element/{element}/clear")
        self.do(f"/element/{element}/value", {"text": text})

    def field(self, label, text, within="dialog"):
        """Types into the field with this label, or chooses that of a list."""
        script = """
            const label = [...document.querySelectorAll(`${arguments[0]} label`)].find((one) => one.textContent === arguments[1]);
            return label && document.getElementById(label.htmlFor)"""
        element = self.until(script, within, label, what=f"field {label!r}")[ELEMENT]
        if self.do(f"/element/{element}/name", method="GET") == "select":
            self.js("arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change'))", {ELEMENT: element}, text)
            return
        self.do(f"/element/{element}/clear")
        self.do(f"/element/{element}/value", {"text": text})

    def submit(self, closes=True):
        self.click("dialog button[type=submit]")
        if closes:
            self.until("return !document.querySelector('dialog')", what="end of the dialog")

    def keys(self, *keys):
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.do("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def picture(self, name):
        with open(os.path.join(self.pictures, f"{name}.png"), "wb") as file:
            file.write(base64.b64decode(self.do("/screenshot", method="GET")))

    def complaints(self):
        """What the browser's console told since the last time, but for answers that were refusals."""
        log = self.do("/se/log", {"type": "browser"})
        return [one["message"] for one in log if one["level"] in ("SEVERE", "WARNING") and "Failed to load resource" not in one["message"]]
