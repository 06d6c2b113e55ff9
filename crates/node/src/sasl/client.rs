//! The client's half of SCRAM-SHA512 (RFC 5802; RFC 7677 for the naming), without channel binding.
//!
//! Text in, text out: what is sent and received is the connection's business.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha512};

/// Its name in SASL.
pub const MECHANISM: &str = "SCRAM-SHA512";
/// The header of an exchange without channel binding, and its Base64.
const GS2_HEADER: &str = "n,,";
const GS2_HEADER_BASE64: &str = "biws";
/// A server that asks for more wants to keep us busy; servers in use ask for 4,096 to 600,000.
const MAX_ITERATIONS: u32 = 10_000_000;

type Key = [u8; 64];

/// A password stretched with a server's salt, kept because stretching is slow by design.
#[derive(Clone)]
pub struct SaltedPassword {
    salt: Vec<u8>,
    iterations: u32,
    key: Key,
}

impl std::fmt::Debug for SaltedPassword {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // As good as the password itself.
        f.write_str("SaltedPassword(...)")
    }
}

impl SaltedPassword {
    /// Stretches `password`.
    pub fn derive(password: &str, salt: &[u8], iterations: u32) -> SaltedPassword {
        let key = pbkdf2::pbkdf2_hmac_array::<Sha512, 64>(password.as_bytes(), salt, iterations);
        SaltedPassword { salt: salt.to_vec(), iterations, key }
    }

    /// The key it was stretched to.
    pub fn key(&self) -> &[u8; 64] {
        &self.key
    }
}

/// What is wrong with what the server sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScramError {
    /// A message that does not follow the grammar.
    Malformed(&'static str),
    /// The server's nonce does not begin with ours: somebody replays another exchange.
    Nonce,
    /// The server's signature is wrong: it does not know the password.
    Signature,
}

/// One exchange.
pub struct Exchange {
    nonce: String,
    first_bare: String,
    /// Expected at the end; there once the server's challenge has been answered.
    server_signature: Option<Key>,
}

impl Exchange {
    /// Begins; `nonce` must be new, printable and free of commas.
    pub fn new(username: &str, nonce: &str) -> Exchange {
        let username = username.replace('=', "=3D").replace(',', "=2C");
        Exchange {
            nonce: nonce.to_owned(),
            first_bare: format!("n={username},r={nonce}"),
            server_signature: None,
        }
    }

    /// The first message.
    pub fn first(&self) -> String {
        format!("{GS2_HEADER}{}", self.first_bare)
    }

    /// Answers the server's challenge. `known` is used if it fits the challenge, and replaced if not.
    pub fn answer(
        &mut self,
        challenge: &str,
        password: &str,
        known: &mut Option<SaltedPassword>,
    ) -> Result<String, ScramError> {
        let nonce = attribute(challenge, "r=").ok_or(ScramError::Malformed("no nonce"))?;
        let salt = attribute(challenge, "s=").and_then(|salt| BASE64.decode(salt).ok());
        let salt = salt.ok_or(ScramError::Malformed("no salt"))?;
        let iterations = attribute(challenge, "i=").and_then(|i| i.parse::<u32>().ok());
        let iterations = iterations
            .filter(|i| (1..=MAX_ITERATIONS).contains(i))
            .ok_or(ScramError::Malformed("no number of iterations, or too many"))?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(ScramError::Nonce);
        }
        let fits = |salted: &SaltedPassword| salted.salt == salt && salted.iterations == iterations;
        let salted = match known.take().filter(fits) {
            Some(salted) => salted,
            None => SaltedPassword::derive(password, &salt, iterations),
        };
        let without_proof = format!("c={GS2_HEADER_BASE64},r={nonce}");
        let auth_message = format!("{},{challenge},{without_proof}", self.first_bare);
        let (proof, server_signature) = sign(&salted.key, &auth_message);
        self.server_signature = Some(server_signature);
        *known = Some(salted);
        Ok(format!("{without_proof},p={}", BASE64.encode(proof)))
    }

    /// Checks the server's last message, in which it proves that it knows the password too.
    pub fn verify(&self, last: &str) -> Result<(), ScramError> {
        let signature = attribute(last, "v=").and_then(|v| BASE64.decode(v).ok());
        let signature = signature.ok_or(ScramError::Malformed("no signature"))?;
        match &self.server_signature {
            Some(expected) if signature == expected => Ok(()),
            _ => Err(ScramError::Signature),
        }
    }
}

/// The client's proof and the server's signature for an exchange.
pub fn sign(salted: &Key, auth_message: &str) -> (Key, Key) {
    let client_key = mac(salted, b"Client Key");
    let stored_key = Sha512::digest(client_key);
    let client_signature = mac(&stored_key, auth_message.as_bytes());
    let mut proof = client_key;
    for (byte, other) in proof.iter_mut().zip(client_signature) {
        *byte ^= other;
    }
    let server_key = mac(salted, b"Server Key");
    (proof, mac(&server_key, auth_message.as_bytes()))
}

fn mac(key: &[u8], message: &[u8]) -> Key {
    let mut mac = Hmac::<Sha512>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

/// The value of an attribute. Nonces may contain anything but a comma, so nothing else separates attributes.
fn attribute<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    message.split(',').find_map(|part| part.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_challenges_that_cannot_be_trusted() {
        let try_with = |challenge: &str| Exchange::new("u", "abc").answer(challenge, "p", &mut None).err();
        assert_eq!(try_with("r=abd1,s=c2FsdA==,i=4096"), Some(ScramError::Nonce));
        assert_eq!(try_with("r=abc,s=c2FsdA==,i=4096"), Some(ScramError::Nonce));
        assert!(matches!(try_with("r=abc1,s=c2FsdA==,i=0"), Some(ScramError::Malformed(_))));
        assert!(matches!(try_with("r=abc1,s=c2FsdA==,i=4000000000"), Some(ScramError::Malformed(_))));
        assert!(matches!(try_with("r=abc1,s=%,i=1"), Some(ScramError::Malformed(_))));
        assert!(matches!(try_with(""), Some(ScramError::Malformed(_))));
    }

    /// The expected texts were computed with Python's hashlib and hmac.
    #[test]
    fn agrees_with_another_implementation() {
        let mut exchange = Exchange::new("user", "fyko+d2lbbFgONRv9qkxdawL");
        let challenge = "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=c2FsdC1vZi10aGUtdGVzdA==,i=4096";
        let mut known = None;
        let answer = exchange.answer(challenge, "pencil", &mut known).unwrap();
        let proof =
            "p=AyYN+7cdf204CqEXT1PaEHvnuQPO1++jSBSkpw5drfKWPTDCYaiDtiDCOndV095/0gj0Mc5R8ml7C6bF6WMASQ==";
        assert_eq!(answer, format!("c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,{proof}"));
        let last =
            "v=fwADLmecqojC4msimXXSY8JlFV14b1HCAzDnU74+zdrimUxmekn92gxqgZlLMEBfS29pGdGQEJ0ARN4E1Fngbg==";
        assert_eq!(exchange.verify(last), Ok(()));
        assert_eq!(exchange.verify("v=AAAA"), Err(ScramError::Signature));
        assert!(exchange.verify("e=invalid-proof").is_err());
        // What was derived is used again: the password is not looked at.
        let mut again = Exchange::new("user", "fyko+d2lbbFgONRv9qkxdawL");
        assert_eq!(again.answer(challenge, "not the password", &mut known), Ok(answer));
    }

    #[test]
    fn escapes_user_names() {
        assert_eq!(Exchange::new("a=b,c", "n").first(), "n,,n=a=3Db=2Cc,r=n");
    }
}
