//! The users of a configuration.

use serde::Deserialize;

use crate::roles::{ALL_BUCKETS, Grant};

/// What a user of the configuration may do: one of three words, or roles with their places.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Role {
    /// Everything.
    Admin,
    /// Read and change documents.
    ReadWrite,
    /// Read documents.
    ReadOnly,
    /// What these allow.
    Grants(Vec<Grant>),
}

impl TryFrom<String> for Role {
    type Error = String;

    fn try_from(text: String) -> Result<Role, String> {
        match text.as_str() {
            "admin" => return Ok(Role::Admin),
            "read-write" => return Ok(Role::ReadWrite),
            "read-only" => return Ok(Role::ReadOnly),
            _ => {}
        }
        let wrong = match Grant::parse_list(&text) {
            Ok(grants) if !grants.is_empty() => return Ok(Role::Grants(grants)),
            Ok(_) => "it is empty".to_owned(),
            Err(wrong) => wrong.into_iter().map(|wrong| wrong.why).collect::<Vec<_>>().join("; "),
        };
        Err(format!(
            "role {text:?}: {wrong}; write admin, read-write, read-only, or roles as ROLE[BUCKET:SCOPE:COLLECTION], for \
             example data_reader[default]"
        ))
    }
}

/// A user who may log in.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserSpec {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
    /// What the user may do; to be said, so that nobody is let in further than was meant.
    pub role: Role,
    /// In which buckets; nothing for all. Roles with places name theirs themselves.
    #[serde(default)]
    pub buckets: Option<Vec<String>>,
}

impl UserSpec {
    /// The roles, and where they hold.
    pub fn grants(&self) -> Vec<Grant> {
        let roles: &[&str] = match &self.role {
            Role::Grants(grants) => return grants.clone(),
            Role::Admin if self.buckets.is_none() => return Grant::parse("admin").into_iter().collect(),
            Role::Admin => &["bucket_admin", "bucket_full_access"],
            Role::ReadWrite => &["data_monitoring", "data_reader", "data_writer"],
            Role::ReadOnly => &["data_monitoring", "data_reader"],
        };
        let everywhere = [ALL_BUCKETS.to_owned()];
        let buckets = self.buckets.as_deref().unwrap_or(&everywhere);
        let of = |bucket: &String| roles.iter().filter_map(|role| Grant::of_bucket(role, bucket)).collect();
        buckets.iter().flat_map(|bucket| -> Vec<Grant> { of(bucket) }).collect()
    }
}

impl std::fmt::Debug for UserSpec {
    /// Leaves the password out: configurations end up in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let UserSpec { name, role, buckets, .. } = self;
        f.debug_struct("UserSpec")
            .field("name", name)
            .field("role", role)
            .field("buckets", buckets)
            .finish_non_exhaustive()
    }
}
