//! Serves with the settings of a TOML file, or the defaults, until it is told to stop.

use std::path::PathBuf;

use base::env::Env;
use node::{Config, Settings};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let settings = match std::env::args().nth(1) {
        Some(text) => Settings::parse(&text)?,
        None => Settings::default(),
    };
    let config = Config::new(settings, PathBuf::from("data"), 2, || "password".to_owned())?;
    let server = server::serve(config, Env::real())?;
    println!("{}", server.ready_line());
    server.next_signal();
    server.stop()?;
    Ok(())
}
