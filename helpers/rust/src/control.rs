//! HTTP with the control endpoint: one request a connection.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::Error;

/// What the endpoint answers, or what it says of an order that it refused.
pub(crate) fn ask(address: &str, method: &str, path: &str) -> Result<String, Error> {
    let what = format!("{method} http://{address}/v1/dev/{path}");
    let exchange = || {
        let mut stream = TcpStream::connect(address)?;
        let head = "Connection: close\r\nContent-Length: 0";
        write!(stream, "{method} /v1/dev/{path} HTTP/1.1\r\nHost: {address}\r\n{head}\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer: String = exchange().map_err(|error| Error::io(&what, error))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        code => Err(Error(format!("{what} was refused with {}: {body}", code.unwrap_or("no status")))),
    }
}
