//! Which user the certificate of a client stands for: rules that take a name out of one of its fields.

use std::str::FromStr;

use serde::Deserialize;

/// Whether clients show a certificate. The original calls these states `disable`, `enable` and `mandatory`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientAuth {
    /// They are not asked for one.
    #[default]
    Off,
    /// They may.
    Optional,
    /// Who has none is not let in.
    Required,
}

impl ClientAuth {
    /// The word of the configuration for it.
    pub fn name(self) -> &'static str {
        match self {
            ClientAuth::Off => "off",
            ClientAuth::Optional => "optional",
            ClientAuth::Required => "required",
        }
    }

    /// The original's word for it.
    pub fn state(self) -> &'static str {
        match self {
            ClientAuth::Off => "disable",
            ClientAuth::Optional => "enable",
            ClientAuth::Required => "mandatory",
        }
    }
}

impl FromStr for ClientAuth {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<ClientAuth, &'static str> {
        match text {
            "off" => Ok(ClientAuth::Off),
            "optional" => Ok(ClientAuth::Optional),
            "required" => Ok(ClientAuth::Required),
            _ => Err("write off, optional or required"),
        }
    }
}

/// A field of a certificate, under the name that the original gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateField {
    /// The common name of the subject.
    SubjectCn,
    /// An alternative name of the subject that is a DNS name.
    SanDnsName,
    /// One that is a URI.
    SanUri,
    /// One that is an e-mail address.
    SanEmail,
}

impl CertificateField {
    /// The original's name of it.
    pub fn name(self) -> &'static str {
        match self {
            CertificateField::SubjectCn => "subject.cn",
            CertificateField::SanDnsName => "san.dnsname",
            CertificateField::SanUri => "san.uri",
            CertificateField::SanEmail => "san.email",
        }
    }

    /// The field of this name.
    pub fn of(name: &str) -> Option<CertificateField> {
        use CertificateField::{SanDnsName, SanEmail, SanUri, SubjectCn};
        [SubjectCn, SanDnsName, SanUri, SanEmail].into_iter().find(|field| field.name() == name)
    }
}

/// A rule: the user's name is what a field holds between a prefix and the first of some delimiters.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ClientNameRule {
    /// The field.
    pub field: CertificateField,
    prefix: String,
    delimiters: String,
}

impl Default for ClientNameRule {
    /// All of the common name.
    fn default() -> ClientNameRule {
        ClientNameRule {
            field: CertificateField::SubjectCn,
            prefix: String::new(),
            delimiters: String::new(),
        }
    }
}

const FORM: &str = "write subject.cn, san.dnsname, san.uri or san.email, and behind it, if need be, prefix=TEXT and \
                    delimiters=CHARACTERS, separated by spaces";

impl FromStr for ClientNameRule {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<ClientNameRule, &'static str> {
        let mut words = text.split_whitespace();
        let field = words.next().and_then(CertificateField::of).ok_or(FORM)?;
        let mut rule = ClientNameRule { field, ..ClientNameRule::default() };
        for word in words {
            match word.split_once('=') {
                Some(("prefix", prefix)) => prefix.clone_into(&mut rule.prefix),
                Some(("delimiters", delimiters)) => delimiters.clone_into(&mut rule.delimiters),
                _ => return Err(FORM),
            }
        }
        Ok(rule)
    }
}

impl TryFrom<String> for ClientNameRule {
    type Error = &'static str;

    fn try_from(text: String) -> Result<ClientNameRule, &'static str> {
        text.parse()
    }
}

impl ClientNameRule {
    /// The name is what `field` holds behind `prefix` and in front of the first of `delimiters`.
    pub fn new(field: CertificateField, prefix: &str, delimiters: &str) -> ClientNameRule {
        ClientNameRule { field, prefix: prefix.to_owned(), delimiters: delimiters.to_owned() }
    }

    /// What stands before the name.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The characters that end the name.
    pub fn delimiters(&self) -> &str {
        &self.delimiters
    }

    /// The name that a field with this value tells; nothing if it has another prefix, or tells an empty name.
    pub fn name_in<'v>(&self, value: &'v str) -> Option<&'v str> {
        let rest = value.strip_prefix(self.prefix.as_str())?;
        let name = rest.split(|char| self.delimiters.contains(char)).next().unwrap_or(rest);
        (!name.is_empty()).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> ClientNameRule {
        text.parse().expect("a rule")
    }

    #[test]
    fn a_name_stands_between_prefix_and_delimiters() {
        assert_eq!(rule("subject.cn").name_in("ada"), Some("ada"));
        assert_eq!(
            rule("san.uri prefix=urn:stave:user: delimiters=@/").name_in("urn:stave:user:ada@x"),
            Some("ada")
        );
        assert_eq!(rule("san.email delimiters=@").name_in("ada@example.org"), Some("ada"));
        assert_eq!(rule("san.dnsname prefix=www.").name_in("ada.example.org"), None);
        for empty in ["", "@example.org"] {
            assert_eq!(rule("san.email delimiters=@").name_in(empty), None, "{empty}");
        }
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for wrong in ["", "subject", "subject.cn prefix", "subject.cn ada", "san.ip prefix=1"] {
            assert_eq!(wrong.parse::<ClientNameRule>(), Err(FORM), "{wrong}");
        }
    }
}
