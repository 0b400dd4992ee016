//! `cargo xtask browse`: opens a page of `annulus report` in a headless browser, and checks that every panel is there, that it makes no
//! requests, has no errors, and shows a run's text as text.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::{root, tool};

/// Browsers that are tried, in this order.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];
/// A run's name that would cause an error on the console if it were interpreted as HTML.
const HOSTILE: &str = "<img src=x onerror=console.error(1)>";
/// Flags that turn off the browser's own requests.
const QUIET: [&str; 8] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-features=OptimizationHints,MediaRouter,Translate",
];
const SIZE: &str = "--window-size=1200,9000";

#[derive(Args)]
pub(crate) struct Arguments {
    /// A page that `annulus report` wrote [default: a page of two short runs, made now]
    page: Option<PathBuf>,
}

/// The first browser that starts on this machine.
fn browser() -> Result<&'static str> {
    let is_there = |name: &&'static str| {
        let mut asked = Command::new(name);
        asked.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    let found = BROWSERS.into_iter().find(is_there);
    found.context("no browser: install `chromium`, or a Chrome that is found by its name")
}

/// Checks a page, and saves a screenshot next to it.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let browser = browser()?;
    let page = match &arguments.page {
        Some(page) => page.canonicalize().with_context(|| page.display().to_string())?,
        None => made()?,
    };
    let address =
        format!("file://{}", page.display().to_string().replace('%', "%25").replace(' ', "%20"));
    let log = root().join("target/browse-network.json");
    // The log must be of this page only.
    let _ = fs::remove_file(&log);
    let picture = page.with_extension("png");
    let (dom, said) =
        opened(browser, &[&format!("--log-net-log={}", log.display()), "--dump-dom"], &address)?;
    opened(browser, &[&format!("--screenshot={}", picture.display())], &address)?;
    // The page's own list of its panels; its tests know which these are.
    let links = dom.split("<a href=\"#").skip(1);
    let panels: Vec<&str> = links.filter_map(|rest| rest.split('"').next()).collect();
    ensure!(!panels.is_empty(), "no list of panels");
    for panel in &panels {
        ensure!(dom.contains(&format!("<section id=\"{panel}\"")), "no panel `{panel}`");
    }
    ensure!(!dom.contains("<img"), "a run's name was interpreted as HTML");
    let complaints: Vec<&str> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
    ensure!(complaints.is_empty(), "the page has errors:\n{}", complaints.join("\n"));
    let asked = asked(&log)?;
    ensure!(asked.is_empty(), "the page requests {}", asked.join(", "));
    let bytes = fs::metadata(&page)?.len();
    tool::print(&format!(
        "{} panels, no errors, no requests, {bytes} bytes; {}",
        panels.len(),
        picture.display()
    ));
    Ok(())
}

/// Makes a page of two short runs, the first with traces and hashes.
fn made() -> Result<PathBuf> {
    tool::cargo(&["build", "--package", "annulus-cli"])?;
    let folder = root().join("target/browse");
    tool::remove_old(&folder)?;
    let hostile = folder.join(HOSTILE);
    let steps = "schedule.steps=12 schedule.warmup=2 every.log=1".split(' ');
    let changes: Vec<String> = steps.map(String::from).collect();
    let recorded = ["trace.steps=[2]", "every.hash=6", "mesh.sequence=3"].map(String::from);
    let file = "experiments/quickstart.yaml";
    tool::train("debug", file, &[&changes[..], &recorded].concat(), &hostile)?;
    tool::train("debug", file, &changes, &folder.join("other"))?;
    let page = folder.join("page.html");
    let program = tool::program("debug", "annulus")?;
    let words = [OsStr::new("report"), hostile.as_ref(), folder.join("other").as_ref()]
        .map(OsStr::to_owned);
    let out = ["--out".into(), page.clone().into_os_string()];
    tool::run(program, &[&words[..], &out].concat())?;
    Ok(page)
}

/// Opens a page; returns the DOM and the browser's messages.
fn opened(browser: &str, words: &[&str], address: &str) -> Result<(String, String)> {
    let profile = root().join("target/browse-profile");
    let mut command = Command::new(browser);
    command.args(QUIET).arg(format!("--user-data-dir={}", profile.display()));
    command
        .args([SIZE, "--enable-logging=stderr", "--virtual-time-budget=3000"])
        .args(words)
        .arg(address);
    let output = command.stdin(Stdio::null()).output()?;
    let [dom, said] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if !output.status.success() {
        bail!("{browser} ended with {}: {said}", output.status);
    }
    Ok((dom, said))
}

/// Network addresses that the page requested.
fn asked(log: &Path) -> Result<Vec<String>> {
    let log: Value = serde_json::from_str(&fs::read_to_string(log).context("no log of requests")?)?;
    let events = log["events"].as_array().context("no events in the log of requests")?;
    // The browser's own requests have no page as their origin.
    let of_page = events.iter().filter(|event| {
        event["params"]["initiator"].as_str().is_some_and(|by| by != "not an origin")
    });
    let urls = of_page.filter_map(|event| event["params"]["url"].as_str());
    let is_away = |url: &&str| url.starts_with("http") || url.starts_with("ws");
    let mut urls: Vec<String> = urls.filter(is_away).map(str::to_owned).collect();
    urls.sort();
    urls.dedup();
    Ok(urls)
}
