//! `bench console`: how long the first page of the console takes in a browser, and what an idle node costs, without a page
//! and with one that is open. The browser is driven by WebDriver, which is JSON over HTTP.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use harness::child::is_installed;
use harness::http::request;
use harness::stave::{PASSWORD, Start, Stave, USER};
use harness::tree::Scratch;
use serde_json::{Value, json};

use super::output::{Output, Program};
use super::process::core_share;
use super::report::{Report, median};

/// How often and how long.
#[derive(Args)]
pub struct ConsoleOptions {
    /// Times that the page is loaded, each time without the browser's cache.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    loads: u32,
    /// Seconds for which an idle node is watched, once without a page and once with one.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    #[command(flatten)]
    program: Program,
    #[command(flatten)]
    output: Output,
}

const DRIVER: &str = "chromedriver";
/// The most that the first page may take, in milliseconds.
const MOST_FIRST_MS: f64 = 200.0;
/// The most that an idle node may cost, in percent of a core.
const MOST_IDLE_PERCENT: f64 = 0.5;
const SHOWN_WITHIN: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(50);

/// Measures.
pub fn run(options: &ConsoleOptions) -> Result<Report> {
    ensure!(is_installed(DRIVER), "{DRIVER} is not installed (`apt-get install chromium-driver`)");
    let program = options.program.ready()?;
    let scratch = Scratch::new("console")?;
    let (data, log) = (scratch.path().join("data"), scratch.path().join("server.log"));
    let server = Stave::start_binary(&program, &Start { data: &data, log, more: &[] }, None)?;
    let mut report = Report::new("console", options.output.json);
    let idle = idle_percent(&server, options.seconds)?;
    let browser = Browser::start()?;
    let (mut first_ms, mut overview_ms) = (Vec::new(), Vec::new());
    for _ in 0..options.loads {
        first_ms.push(browser.first_page(&server.http)?);
        overview_ms.push(browser.log_in()?);
        println!(
            "first page {:.0} ms, overview {:.0} ms",
            first_ms[first_ms.len() - 1],
            overview_ms[overview_ms.len() - 1]
        );
    }
    let open = idle_percent(&server, options.seconds)?;
    report.add("first_page_ms", median(&mut first_ms), Some(MOST_FIRST_MS));
    report.add("overview_after_login_ms", median(&mut overview_ms), None);
    report.add("idle_percent_of_a_core", idle, Some(MOST_IDLE_PERCENT));
    report.add("idle_percent_with_open_page", open, Some(MOST_IDLE_PERCENT));
    drop(browser);
    server.stop()?;
    Ok(report)
}

/// What a node costs while no client asks anything, in percent of a core.
fn idle_percent(server: &Stave, seconds: u32) -> Result<f64> {
    // What it was asked before is over.
    thread::sleep(Duration::from_secs(2));
    Ok(core_share(server.pid(), Duration::from_secs(seconds.into()))? * 100.0)
}

/// A browser, and the driver that it ends with.
struct Browser {
    driver: Child,
    address: String,
    session: String,
}

impl Browser {
    fn start() -> Result<Browser> {
        let mut command = Command::new(DRIVER);
        command.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null());
        let mut driver = command.spawn().with_context(|| format!("cannot run {DRIVER}"))?;
        let told = BufReader::new(driver.stdout.take().context("the output is piped")?);
        let port = told.lines().map_while(Result::ok).find_map(|line| port_of(&line));
        let mut browser = Browser { driver, address: String::new(), session: String::new() };
        browser.address = format!("127.0.0.1:{}", port.context("chromedriver ended before it was ready")?);
        let arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
        let wanted = json!({ "browserName": "chrome", "goog:chromeOptions": { "args": arguments } });
        let made = browser.ask("/session", &json!({ "capabilities": { "alwaysMatch": wanted } }))?;
        browser.session = format!("/session/{}", made["sessionId"].as_str().context("a session has a name")?);
        browser.tell("/goog/cdp/execute", &json!({ "cmd": "Network.enable", "params": {} }))?;
        let uncached = json!({ "cmd": "Network.setCacheDisabled", "params": { "cacheDisabled": true } });
        browser.tell("/goog/cdp/execute", &uncached)?;
        Ok(browser)
    }

    fn ask(&self, path: &str, body: &Value) -> Result<Value> {
        let answer = request(&self.address, "POST", path, &body.to_string())?;
        Ok(serde_json::from_str::<Value>(&answer)?["value"].take())
    }

    fn tell(&self, path: &str, body: &Value) -> Result<Value> {
        self.ask(&format!("{}{path}", self.session), body)
    }

    fn js(&self, how: &str, script: &str) -> Result<Value> {
        self.tell(&format!("/execute/{how}"), &json!({ "script": script, "args": [] }))
    }

    /// Opens the console; milliseconds from the beginning of that until the form is there and its scripts have run.
    fn first_page(&self, server: &str) -> Result<f64> {
        self.tell("/url", &json!({ "url": "about:blank" }))?;
        self.tell("/url", &json!({ "url": format!("http://{server}/ui") }))?;
        let begun = Instant::now();
        while self.js("sync", "return Boolean(document.querySelector('#login'))")? != true {
            ensure!(begun.elapsed() < SHOWN_WITHIN, "the console shows no form to log in");
            thread::sleep(LOOK);
        }
        let script = "return performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd";
        self.js("sync", script)?.as_f64().context("a time in milliseconds")
    }

    /// Logs in; milliseconds until the overview is there.
    fn log_in(&self) -> Result<f64> {
        let script = format!(
            "const done = arguments[0], begun = performance.now();
             const put = (name, value) => {{ document.querySelector(`input[name=${{name}}]`).value = value; }};
             put('user', '{USER}'); put('password', '{PASSWORD}');
             document.querySelector('#login button[type=submit]').click();
             const look = () => {{
               const page = document.getElementById('page');
               if (page && !page.hasAttribute('aria-busy') && page.innerText.length > 20) done(performance.now() - begun);
               else setTimeout(look, 5);
             }};
             look();"
        );
        self.js("async", &script)?.as_f64().context("a time in milliseconds")
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            // It ends the browser; one that does not answer ends with its driver.
            let _ = request(&self.address, "DELETE", &self.session, "");
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// The port that the driver tells when it is ready.
fn port_of(line: &str) -> Option<u16> {
    let behind = line.split_once("started successfully on port ")?.1;
    behind.split(|other: char| !other.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_tells_its_port() {
        assert_eq!(port_of("ChromeDriver was started successfully on port 40123."), Some(40123));
        assert_eq!(port_of("Only local connections are allowed."), None);
    }
}
