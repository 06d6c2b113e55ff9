//! PLAIN (RFC 4616): `[authzid] NUL authcid NUL passwd`.

use super::LoginError;

/// Name and password out of the client's message. Whom the client wants to act for (the part before the first NUL) is
/// ignored, as servers of this protocol do.
pub fn parse(message: &[u8]) -> Result<(&[u8], &[u8]), LoginError> {
    let mut parts = message.splitn(3, |byte| *byte == 0).skip(1);
    let name = parts.next().ok_or(LoginError::Malformed)?;
    let password = parts.next().ok_or(LoginError::Malformed)?;
    Ok((name, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_two_nuls() {
        assert_eq!(parse(b"\0user\0pass"), Ok((&b"user"[..], &b"pass"[..])));
        assert_eq!(parse(b"other\0user\0pass\0word"), Ok((&b"user"[..], &b"pass\0word"[..])));
        assert_eq!(parse(b"\0\0"), Ok((&b""[..], &b""[..])));
        for malformed in [&b""[..], b"x", b"\0user", b"user\0pass"] {
            assert_eq!(parse(malformed), Err(LoginError::Malformed));
        }
    }
}
