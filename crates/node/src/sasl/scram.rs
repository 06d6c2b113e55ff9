//! SCRAM (RFC 5802, RFC 7677): the password never crosses the wire, and each side proves that it knows it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use super::LoginError;
use super::digest::{Digest, Mechanism};

/// How often the password is hashed, if the configuration does not say. Every client takes any number; this is the one
/// RFC 7677 asks for at least.
pub(super) const ITERATIONS: u32 = 4096;
/// What may be configured.
pub const ITERATIONS_RANGE: std::ops::RangeInclusive<u32> = 4_096..=1_000_000;
/// More than this is nothing of ours: a login must not keep a thread busy.
const MOST_ITERATIONS: u32 = 10_000_000;
/// Longest message a client may send: the names and nonces of real ones take a tenth of it.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Longest first message, which is kept until the last one comes: the longest name of a user, twice, takes 768 bytes with each
/// byte of it escaped, and nonces of real clients take 64 at most.
const MAX_FIRST_BYTES: usize = 1024;

/// What a server keeps of a password (RFC 5802, section 3).
#[derive(Clone)]
pub struct ScramKeys {
    mechanism: Mechanism,
    salt: [u8; 16],
    iterations: u32,
    stored_key: Digest,
    server_key: Digest,
}

impl ScramKeys {
    /// Derives them from a password.
    pub fn derive(mechanism: Mechanism, password: &[u8], salt: [u8; 16], iterations: u32) -> ScramKeys {
        let salted = mechanism.pbkdf2(password, &salt, iterations);
        ScramKeys::of_salted(mechanism, &salted, salt, iterations)
    }

    fn of_salted(mechanism: Mechanism, salted: &Digest, salt: [u8; 16], iterations: u32) -> ScramKeys {
        let client_key = mechanism.hmac(salted.bytes(), &[b"Client Key"]);
        ScramKeys {
            mechanism,
            salt,
            iterations,
            stored_key: mechanism.hash(client_key.bytes()),
            server_key: mechanism.hmac(salted.bytes(), &[b"Server Key"]),
        }
    }

    /// As they are kept.
    pub fn to_secret(&self) -> ScramSecret {
        ScramSecret {
            salt: STANDARD.encode(self.salt),
            iterations: self.iterations,
            stored_key: STANDARD.encode(self.stored_key.bytes()),
            server_key: STANDARD.encode(self.server_key.bytes()),
        }
    }

    /// How often the password is hashed.
    pub(crate) fn iterations(&self) -> u32 {
        self.iterations
    }

    /// Whether they are of this password, at the cost of deriving them.
    pub fn is_of(&self, password: &[u8]) -> bool {
        let salted = self.mechanism.pbkdf2(password, &self.salt, self.iterations);
        let given = ScramKeys::of_salted(self.mechanism, &salted, self.salt, self.iterations);
        given.is_same(self)
    }

    /// Whether both are the same keys.
    pub fn is_same(&self, other: &ScramKeys) -> bool {
        let stored_key = self.stored_key.bytes().ct_eq(other.stored_key.bytes());
        self.salt == other.salt && bool::from(stored_key)
    }

    /// Keys that no password has, for users who do not exist.
    pub fn decoy(mechanism: Mechanism, salt: [u8; 16], noise: Digest, iterations: u32) -> ScramKeys {
        ScramKeys { mechanism, salt, iterations, stored_key: noise, server_key: noise }
    }
}

/// What is kept of a password for one mechanism: bytes in Base64.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScramSecret {
    salt: String,
    iterations: u32,
    stored_key: String,
    server_key: String,
}

impl ScramSecret {
    /// The keys; `None` if they are not such of this mechanism.
    pub fn keys(&self, mechanism: Mechanism) -> Option<ScramKeys> {
        if !(1..=MOST_ITERATIONS).contains(&self.iterations) {
            return None;
        }
        let digest = |text: &str| {
            let bytes = STANDARD.decode(text).ok()?;
            (bytes.len() == mechanism.digest_bytes()).then(|| Digest::of_bytes(&bytes))
        };
        Some(ScramKeys {
            mechanism,
            salt: STANDARD.decode(&self.salt).ok()?.try_into().ok()?,
            iterations: self.iterations,
            stored_key: digest(&self.stored_key)?,
            server_key: digest(&self.server_key)?,
        })
    }
}

/// The client's first message, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientFirst<'a> {
    /// Who wants to log in.
    pub name: Vec<u8>,
    nonce: &'a str,
    gs2_header: &'a str,
    bare: &'a str,
}

impl<'a> ClientFirst<'a> {
    /// Reads `n,[a=authzid],n=name,r=nonce`. Only commas separate: nonces of real clients contain spaces.
    pub fn parse(message: &'a [u8]) -> Result<ClientFirst<'a>, LoginError> {
        parse_client_first(message).ok_or(LoginError::Malformed)
    }
}

fn parse_client_first(message: &[u8]) -> Option<ClientFirst<'_>> {
    if message.len() > MAX_FIRST_BYTES {
        return None;
    }
    let text = std::str::from_utf8(message).ok()?;
    // Channel binding is neither offered nor accepted, so the only flag is "n".
    let after_flag = text.strip_prefix("n,")?;
    let (authzid, bare) = after_flag.split_once(',')?;
    if !authzid.is_empty() && !authzid.starts_with("a=") {
        return None;
    }
    let gs2_header = &text[..text.len() - bare.len()];
    let mut attributes = bare.split(',');
    let name = unescape(attributes.next()?.strip_prefix("n=")?)?;
    let nonce = attributes.next()?.strip_prefix("r=")?;
    if name.is_empty() || nonce.is_empty() {
        return None;
    }
    Some(ClientFirst { name, nonce, gs2_header, bare })
}

/// Names write a comma as `=2C` and an equals sign as `=3D`.
fn unescape(name: &str) -> Option<Vec<u8>> {
    let mut parts = name.split('=');
    let mut out = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (byte, rest) = match (part.strip_prefix("2C"), part.strip_prefix("3D")) {
            (Some(rest), _) => (b',', rest),
            (_, Some(rest)) => (b'=', rest),
            _ => return None,
        };
        out.push(byte);
        out.extend_from_slice(rest.as_bytes());
    }
    Some(out)
}

/// A login between the client's first and last message.
pub struct Exchange {
    name: Vec<u8>,
    keys: ScramKeys,
    /// Nonces of client and server together.
    nonce: String,
    /// The channel binding the client must repeat, in Base64.
    binding: String,
    client_first_bare: String,
    server_first: String,
}

impl Exchange {
    /// Answers the client's first message; `server_nonce` must be fresh.
    pub fn start(first: &ClientFirst<'_>, keys: ScramKeys, server_nonce: &[u8]) -> Exchange {
        // Joined, not formatted: no more is allocated than that takes.
        let nonce = [first.nonce, &STANDARD.encode(server_nonce)].concat();
        let offer = format!(",s={},i={}", STANDARD.encode(keys.salt), keys.iterations);
        let server_first = ["r=", &nonce, &offer].concat();
        Exchange {
            name: first.name.clone(),
            nonce,
            binding: STANDARD.encode(first.gs2_header),
            client_first_bare: first.bare.to_owned(),
            server_first,
            keys,
        }
    }

    /// Bytes that it takes until it is finished.
    pub fn held_bytes(&self) -> usize {
        let texts = [&self.nonce, &self.binding, &self.client_first_bare, &self.server_first];
        let texts: usize = texts.into_iter().map(String::capacity).sum();
        size_of::<Exchange>() + self.name.capacity() + texts
    }

    /// The server's first message.
    pub fn server_first(&self) -> &str {
        &self.server_first
    }

    /// Whether it goes by these keys.
    pub fn is_with(&self, keys: &ScramKeys) -> bool {
        self.keys.salt == keys.salt
    }

    /// Who wants to log in.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The mechanism it runs on.
    pub fn mechanism(&self) -> Mechanism {
        self.keys.mechanism
    }

    /// Checks the client's last message and gives the server's.
    pub fn finish(&self, message: &[u8]) -> Result<String, LoginError> {
        let (without_proof, proof) = split_client_final(message).ok_or(LoginError::Malformed)?;
        let mut attributes = without_proof.split(',');
        let binding =
            attributes.next().and_then(|text| text.strip_prefix("c=")).ok_or(LoginError::Malformed)?;
        let nonce =
            attributes.next().and_then(|text| text.strip_prefix("r=")).ok_or(LoginError::Malformed)?;
        let proof = STANDARD.decode(proof).map_err(|_| LoginError::Malformed)?;
        let mechanism = self.keys.mechanism;
        let transcript = format!("{},{},{without_proof}", self.client_first_bare, self.server_first);
        let signature = mechanism.hmac(self.keys.stored_key.bytes(), &[transcript.as_bytes()]);
        if binding != self.binding || nonce != self.nonce || proof.len() != mechanism.digest_bytes() {
            return Err(LoginError::Wrong);
        }
        let client_key: Vec<u8> = proof.iter().zip(signature.bytes()).map(|(a, b)| a ^ b).collect();
        let stored_key = mechanism.hash(&client_key);
        if !bool::from(stored_key.bytes().ct_eq(self.keys.stored_key.bytes())) {
            return Err(LoginError::Wrong);
        }
        let server_signature = mechanism.hmac(self.keys.server_key.bytes(), &[transcript.as_bytes()]);
        Ok(format!("v={}", STANDARD.encode(server_signature.bytes())))
    }
}

/// The client's last message without its proof, and the proof, which must come last.
fn split_client_final(message: &[u8]) -> Option<(&str, &str)> {
    if message.len() > MAX_MESSAGE_BYTES {
        return None;
    }
    let text = std::str::from_utf8(message).ok()?;
    let (without_proof, proof) = text.rsplit_once(",p=")?;
    (!proof.contains(',')).then_some((without_proof, proof))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays the client's and the server's part with the values of an RFC's example.
    fn example(
        mechanism: Mechanism,
        salt: &str,
        client_nonce: &str,
        server_nonce: &str,
        proof: &str,
        v: &str,
    ) {
        let salt = STANDARD.decode(salt).expect("Base64");
        let salted = mechanism.pbkdf2(b"pencil", &salt, 4096);
        // The examples' salts are not all of our length, so the message is put together here.
        let keys = ScramKeys::of_salted(mechanism, &salted, [0; 16], 4096);
        let message = format!("n,,n=user,r={client_nonce}");
        let first = ClientFirst::parse(message.as_bytes()).expect("valid");
        assert_eq!(first.name, b"user");
        let nonce = format!("{client_nonce}{server_nonce}");
        let exchange = Exchange {
            name: first.name.clone(),
            server_first: format!("r={nonce},s={},i=4096", STANDARD.encode(&salt)),
            binding: STANDARD.encode(first.gs2_header),
            client_first_bare: first.bare.to_owned(),
            nonce: nonce.clone(),
            keys,
        };
        let last = format!("c=biws,r={nonce},p={proof}");
        assert_eq!(exchange.finish(last.as_bytes()).as_deref(), Ok(format!("v={v}").as_str()));
        let other = format!("c=biws,r={nonce}x,p={proof}");
        assert_eq!(exchange.finish(other.as_bytes()), Err(LoginError::Wrong));
    }

    #[test]
    fn rfc_5802_section_5() {
        example(
            Mechanism::Sha1,
            "QSXCR+Q6sek8bf92",
            "fyko+d2lbbFgONRv9qkxdawL",
            "3rfcNHYJY1ZVvWVs7j",
            "v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
            "rmF9pqV8S7suAoZWja4dJRkFsKQ=",
        );
    }

    #[test]
    fn rfc_7677_section_3() {
        example(
            Mechanism::Sha256,
            "W22ZaJ0SNY7soEsUEjb6gQ==",
            "rOprNGfwEbeRWgbNEkqO",
            "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
            "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        );
    }

    #[test]
    fn a_whole_exchange_of_each_mechanism() {
        for mechanism in Mechanism::ALL {
            let keys = ScramKeys::derive(mechanism, b"pass,word", [7; 16], ITERATIONS);
            let first =
                ClientFirst::parse(b"n,a=x,n=a=2Cb=3Dc,r=0x6c 0xffffffa4").expect("nonces may have spaces");
            assert_eq!(first.name, b"a,b=c");
            let exchange = Exchange::start(&first, keys, b"nonce");
            let nonce = format!("0x6c 0xffffffa4{}", STANDARD.encode(b"nonce"));
            let last = client_final(mechanism, b"pass,word", &exchange, "n,a=x,", &nonce);
            assert!(exchange.finish(last.as_bytes()).is_ok());
            let last = client_final(mechanism, b"password", &exchange, "n,a=x,", &nonce);
            assert_eq!(exchange.finish(last.as_bytes()), Err(LoginError::Wrong));
        }
    }

    fn client_final(
        mechanism: Mechanism,
        password: &[u8],
        exchange: &Exchange,
        gs2: &str,
        nonce: &str,
    ) -> String {
        let salted = mechanism.pbkdf2(password, &[7; 16], ITERATIONS);
        let client_key = mechanism.hmac(salted.bytes(), &[b"Client Key"]);
        let stored_key = mechanism.hash(client_key.bytes());
        let without_proof = format!("c={},r={nonce}", STANDARD.encode(gs2));
        let transcript = format!("{},{},{without_proof}", exchange.client_first_bare, exchange.server_first);
        let proof = client_key.xor(&mechanism.hmac(stored_key.bytes(), &[transcript.as_bytes()]));
        format!("{without_proof},p={}", STANDARD.encode(proof.bytes()))
    }

    #[test]
    fn first_messages_that_are_refused() {
        let refused = [
            "",
            "junk",
            "n,,",
            "n,,n=user",
            "n,,r=abc",
            "p=tls-unique,,n=u,r=a",
            "y,,n=u,r=a",
            "n,x,n=u,r=a",
            "n,,n==2X,r=a",
        ];
        for message in refused {
            assert_eq!(ClientFirst::parse(message.as_bytes()), Err(LoginError::Malformed), "{message}");
        }
    }

    #[test]
    fn last_messages_that_are_refused() {
        let keys = ScramKeys::derive(Mechanism::Sha256, b"x", [0; 16], ITERATIONS);
        let first = ClientFirst::parse(b"n,,n=user,r=abc").expect("valid");
        let exchange = Exchange::start(&first, keys, b"n");
        for message in ["", "junk", "c=biws,p=AAAA", "r=abc,p=AAAA", "c=biws,r=abc,p=!"] {
            assert_eq!(exchange.finish(message.as_bytes()), Err(LoginError::Malformed), "{message}");
        }
        assert_eq!(exchange.finish(b"c=biws,r=abc,p=AAAA"), Err(LoginError::Wrong));
    }
}
