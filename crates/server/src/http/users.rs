//! Users, groups and roles over HTTP, in the shapes that SDKs' user managers read (Couchbase Server's REST API,
//! Role-Based Access Control).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ::node::calendar::timestamp;
use ::node::kept_users::{
    EntryKind, KeptGroup, KeptUser, KeptUsers, MOST_MIN_LENGTH, NewPassword, PasswordHash, PasswordPolicy,
    UNKNOWN_GROUP, UNKNOWN_USER, UserForm, UsersRefusal,
};
use ::node::roles::{ALL_BUCKETS, Grant, NoGrant, ROLES, RoleRow, Takes};
use ::node::user::User;
use ::node::{form, password_check};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::basic_auth::Caller;
use super::failures::failed;
use super::manage::on_a_thread;
use super::rights::Lacking;
use super::shared::Shared;

/// The one domain there is: users whose passwords the node checks itself.
pub(super) const LOCAL: &str = "local";
/// The field's other one, of users that another server checks: it has none here.
pub(super) const EXTERNAL: &str = "external";

impl From<UsersRefusal> for UsersAnswer {
    fn from(refusal: UsersRefusal) -> UsersAnswer {
        let error = |status, field: &str, what: String| {
            UsersAnswer(Box::new((status, Json(json!({ "errors": { field: what } }))).into_response()))
        };
        match refusal {
            UsersRefusal::Field(field, what) => error(StatusCode::BAD_REQUEST, field, what),
            UsersRefusal::NotFound(what) => {
                UsersAnswer(Box::new((StatusCode::NOT_FOUND, Json(json!(what))).into_response()))
            }
            UsersRefusal::Forbidden(what) => {
                let permissions = ["admin"];
                let message = json!({ "message": format!("Forbidden. {what}"), "permissions": permissions });
                let mut answer = (StatusCode::FORBIDDEN, Json(message)).into_response();
                answer.extensions_mut().insert(Lacking(permissions.into()));
                UsersAnswer(Box::new(answer))
            }
            UsersRefusal::NotHere(why) => {
                error(StatusCode::BAD_REQUEST, "_", format!("users cannot be kept: {why}"))
            }
            UsersRefusal::Damaged(what) => error(StatusCode::INTERNAL_SERVER_ERROR, "_", what),
            UsersRefusal::Away(what) => error(StatusCode::SERVICE_UNAVAILABLE, "_", what),
            UsersRefusal::File(failure) => {
                let told = format!("the users could not be saved{}", failure.advice());
                let UsersAnswer(response) = error(StatusCode::INTERNAL_SERVER_ERROR, "_", told);
                UsersAnswer(Box::new(failed(*response, "users stay as they are", &failure)))
            }
        }
    }
}

/// An answer that ends a request early.
pub(super) struct UsersAnswer(Box<Response>);

impl IntoResponse for UsersAnswer {
    fn into_response(self) -> Response {
        *self.0
    }
}

pub(super) type Answered = Result<Response, UsersAnswer>;

impl From<Response> for UsersAnswer {
    fn from(response: Response) -> UsersAnswer {
        UsersAnswer(Box::new(response))
    }
}

/// The empty text, as JSON: the field's answer to a change of a user or a group.
fn changed() -> Response {
    Json("").into_response()
}

/// The answer to a change without a body.
pub(super) fn done() -> Response {
    StatusCode::OK.into_response()
}

/// Changes the users on a thread that may wait for the disk.
pub(super) async fn change(
    shared: &Shared,
    work: impl Fn(&mut KeptUsers) -> Result<(), UsersRefusal> + Send + 'static,
) -> Result<(), UsersAnswer> {
    let node = Arc::clone(&shared.node);
    let done = on_a_thread(shared, move |_| {
        Ok::<_, ::node::management::BucketError>(node.accounts().change_kept(&node, work))
    });
    match done.await {
        Ok(done) => done.map_err(UsersAnswer::from),
        Err(error) => Err(UsersAnswer(Box::new(super::manage::answer(&error)))),
    }
}

/// What is kept, in a cluster as the coordination store has it now. Users that cannot be read are not told like users who
/// are not there.
pub(super) async fn kept(shared: &Shared) -> Result<Arc<KeptUsers>, UsersAnswer> {
    read(shared, true).await
}

/// What is kept, as this node knows it now.
pub(super) async fn kept_here(shared: &Shared) -> Result<Arc<KeptUsers>, UsersAnswer> {
    read(shared, false).await
}

async fn read(shared: &Shared, asks_store: bool) -> Result<Arc<KeptUsers>, UsersAnswer> {
    let node = Arc::clone(&shared.node);
    let read = on_a_thread(shared, move |_| {
        if asks_store {
            node.accounts().refresh(&node);
        }
        Ok::<_, ::node::management::BucketError>(node.accounts().kept())
    });
    match read.await {
        Ok(kept) => Ok(kept?),
        Err(error) => Err(UsersAnswer(Box::new(super::manage::answer(&error)))),
    }
}

pub(super) fn check_domain(domain: &str) -> Result<(), UsersAnswer> {
    if domain == LOCAL {
        return Ok(());
    }
    let what = "Unknown user domain: there is no other one than local";
    Err(UsersAnswer(Box::new((StatusCode::NOT_FOUND, Json(json!(what))).into_response())))
}

fn grant(grant: &Grant) -> Value {
    let mut told = json!({ "role": grant.row().name });
    let places = [
        ("bucket_name", grant.bucket()),
        ("scope_name", grant.scope()),
        ("collection_name", grant.collection()),
    ];
    for (field, name) in places {
        if let Some(name) = name {
            told[field] = name.into();
        }
    }
    // Of a bucket's whole the depths that the role could be narrowed to are told, too.
    if grant.bucket().is_some() {
        let depths = [("scope_name", Takes::Scope), ("collection_name", Takes::Collection)];
        for (field, depth) in depths {
            if grant.row().takes >= depth && told[field].is_null() {
                told[field] = ALL_BUCKETS.into();
            }
        }
    }
    told
}

/// A user with all roles; each says where it comes from.
pub(super) fn user(kept: &KeptUsers, name: &str, user: &KeptUser) -> Value {
    let mut origins: BTreeMap<Grant, Vec<Value>> = BTreeMap::new();
    for own in user.grants() {
        origins.entry(own).or_default().push(json!({ "type": "user" }));
    }
    for group in user.groups() {
        for role in kept.groups().get(group).map(|group| group.grants()).unwrap_or_default() {
            origins.entry(role).or_default().push(json!({ "type": "group", "name": group }));
        }
    }
    let roles = origins.iter().map(|(one, origins)| {
        let mut told = grant(one);
        told["origins"] = json!(origins);
        told
    });
    json!({
        "id": name,
        "domain": LOCAL,
        "roles": roles.collect::<Vec<_>>(),
        "groups": user.groups(),
        "external_groups": [],
        "name": user.title(),
        "password_change_date": timestamp(user.password_changed_s() * 1_000_000_000),
    })
}

/// `GET /settings/rbac/users/DOMAIN/NAME`
pub(super) async fn show(
    State(shared): State<Shared>,
    Path((domain, name)): Path<(String, String)>,
) -> Answered {
    check_domain(&domain)?;
    let kept = kept(&shared).await?;
    kept.check_readable(EntryKind::User, &name)?;
    let found = kept.users().get(&name).ok_or(UsersRefusal::NotFound(UNKNOWN_USER))?;
    Ok(Json(user(&kept, &name, found)).into_response())
}

/// Refuses to change a user of the configuration file.
fn check_kept(shared: &Shared, name: &str) -> Result<(), UsersRefusal> {
    if !shared.node.accounts().users().is_configured(name) {
        return Ok(());
    }
    Err(is_configured(name))
}

fn is_configured(name: &str) -> UsersRefusal {
    let what = format!("{name} is a user of the node's configuration: change it there, and reload the node");
    UsersRefusal::Field("name", what)
}

fn field(fields: &[(String, String)], name: &str) -> Option<String> {
    fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.clone())
}

/// Refuses a form with other fields than these: a name that is misspelt would empty what it was meant for.
fn check_fields(fields: &[(String, String)], known: &[&str]) -> Result<(), UsersAnswer> {
    let Some((other, _)) = fields.iter().find(|(name, _)| !known.contains(&name.as_str())) else {
        return Ok(());
    };
    if other.starts_with('{') {
        let what = "The body must be a form (name=value&name=value), not JSON".to_owned();
        return Err(UsersRefusal::Field("_", what).into());
    }
    let told = json!({ "errors": { other.as_str(): "Unsupported key" } });
    Err(UsersAnswer(Box::new((StatusCode::BAD_REQUEST, Json(told)).into_response())))
}

/// The roles of a form: known ones, for places that are there. SDKs and scripts may look for the words that Couchbase
/// Server refuses others with; what is wrong follows them.
fn roles(shared: &Shared, text: &str) -> Result<Vec<Grant>, UsersRefusal> {
    let wrong = match Grant::parse_list(text) {
        Ok(grants) => {
            let no_place = |grant: &Grant| {
                let why = missing_place(shared, grant)?;
                Some(NoGrant { text: grant.to_string(), why })
            };
            let wrong: Vec<NoGrant> = grants.iter().filter_map(no_place).collect();
            if wrong.is_empty() {
                return Ok(grants);
            }
            wrong
        }
        Err(wrong) => wrong,
    };
    let texts: Vec<&str> = wrong.iter().map(|one| one.text.as_str()).collect();
    let reasons: BTreeSet<&str> = wrong.iter().map(|one| one.why.as_str()).collect();
    let what = format!(
        "Cannot assign roles to user because the following roles are unknown, malformed or role parameters are \
         undefined: [{}]: {}",
        texts.join(","),
        reasons.into_iter().collect::<Vec<_>>().join("; ")
    );
    Err(UsersRefusal::Field("roles", what))
}

/// What a grant names and is not there.
fn missing_place(shared: &Shared, grant: &Grant) -> Option<String> {
    let name = grant.bucket().filter(|name| *name != ALL_BUCKETS)?;
    let Some(bucket) = shared.node.bucket(name) else {
        return Some(format!("there is no bucket `{name}`"));
    };
    let scope_name = grant.scope()?;
    let manifest = bucket.collections().manifest();
    let Some(scope) = manifest.scope_named(scope_name) else {
        return Some(format!("bucket `{name}` has no scope `{scope_name}`: make it first"));
    };
    let collection = grant.collection()?;
    let is_there = manifest.collection_named(scope.id, collection).is_some();
    (!is_there).then(|| {
        format!("scope `{scope_name}` of bucket `{name}` has no collection `{collection}`: make it first")
    })
}

/// A new password, and what is kept of it, which a thread for passwords derives.
async fn derived(shared: &Shared, text: String) -> Result<NewPassword, UsersRefusal> {
    // What is no UTF-8 becomes this, and would be the same for all such passwords.
    if text.contains(char::REPLACEMENT_CHARACTER) {
        return Err(UsersRefusal::Field("password", "The password must be valid UTF-8".to_owned()));
    }
    let password = NewPassword::new(text, shared.node.accounts().users().hashing());
    match password_check::prepare(&shared.node, password) {
        Some(prepared) => prepared.await.flatten(),
        None => None,
    }
    .ok_or_else(|| UsersRefusal::Away("too many passwords wait: nothing was changed; try again".to_owned()))
}

/// `PUT /settings/rbac/users/DOMAIN/NAME`: `password` or, for a full administrator, `passwordHash`; `name`, `roles`,
/// `groups`.
pub(super) async fn put(
    State(shared): State<Shared>,
    Extension(Caller(caller)): Extension<Caller>,
    Path((domain, name)): Path<(String, String)>,
    body: Bytes,
) -> Answered {
    if domain == EXTERNAL {
        let what = "This node knows users of the domain local alone, whose passwords it checks itself";
        return Err(UsersRefusal::Field("_", what.to_owned()).into());
    }
    check_domain(&domain)?;
    check_kept(&shared, &name)?;
    let fields = form::parse(&body);
    check_fields(&fields, &["password", "passwordHash", "name", "roles", "groups"])?;
    let groups = field(&fields, "groups").unwrap_or_default();
    let password = match field(&fields, "password") {
        Some(text) => Some(derived(&shared, text).await?),
        None => None,
    };
    let hash = match field(&fields, "passwordHash") {
        Some(_) if password.is_some() => {
            let what = "Give either a password or its hash".to_owned();
            return Err(UsersRefusal::Field("passwordHash", what).into());
        }
        text => text.map(|text| PasswordHash::parse(&text)).transpose()?,
    };
    let form = UserForm {
        password,
        title: field(&fields, "name"),
        roles: roles(&shared, &field(&fields, "roles").unwrap_or_default())?,
        groups: groups.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect(),
        hash,
    };
    let env = shared.node.env().clone();
    change(&shared, move |kept| kept.put_user(&caller, &name, &form, &env)).await.map(|()| changed())
}

/// `DELETE /settings/rbac/users/DOMAIN/NAME`
pub(super) async fn remove(
    State(shared): State<Shared>,
    Extension(Caller(caller)): Extension<Caller>,
    Path((domain, name)): Path<(String, String)>,
) -> Answered {
    check_domain(&domain)?;
    let here = check_kept(&shared, &name).err().map(|_| name.clone());
    // One that a user of the configuration hides can be removed: it would count again once that one is gone.
    let remove = move |kept: &mut KeptUsers| match (kept.remove_user(&caller, &name), &here) {
        (Err(UsersRefusal::NotFound(_)), Some(here)) => Err(is_configured(here)),
        (done, _) => done,
    };
    change(&shared, remove).await.map(|()| changed())
}

/// `GET /settings/rbac/backup`: users and groups in the fields of their forms, with what checks passwords.
pub(super) async fn backup(State(shared): State<Shared>) -> Answered {
    let kept = kept(&shared).await?;
    let texts = |grants: Vec<Grant>| grants.iter().map(Grant::to_string).collect::<Vec<_>>().join(",");
    let user = |(name, user): (&String, &KeptUser)| {
        json!({
            "id": name,
            "name": user.title(),
            "roles": texts(user.grants()),
            "groups": user.groups(),
            "passwordHash": user.password_hash(),
        })
    };
    let group = |(name, group): (&String, &KeptGroup)| {
        json!({
            "id": name,
            "roles": texts(group.grants()),
            "description": group.description,
            "ldap_group_ref": group.ldap_group_ref,
        })
    };
    let users: Vec<Value> = kept.users().iter().map(user).collect();
    let groups: Vec<Value> = kept.groups().iter().map(group).collect();
    Ok(Json(json!({ "version": 1, "users": users, "groups": groups })).into_response())
}

pub(super) fn group(kept: &KeptUsers, name: &str) -> Option<Value> {
    let found = kept.groups().get(name)?;
    let roles: Vec<Value> = found.grants().iter().map(grant).collect();
    Some(json!({
        "id": name,
        "roles": roles,
        "ldap_group_ref": found.ldap_group_ref,
        "description": found.description,
    }))
}

/// `GET /settings/rbac/groups/NAME`
pub(super) async fn show_group(State(shared): State<Shared>, Path(name): Path<String>) -> Answered {
    let kept = kept(&shared).await?;
    kept.check_readable(EntryKind::Group, &name)?;
    let found = group(&kept, &name).ok_or(UsersRefusal::NotFound(UNKNOWN_GROUP))?;
    Ok(Json(found).into_response())
}

/// `PUT /settings/rbac/groups/NAME`: `description`, `roles`, `ldap_group_ref`.
pub(super) async fn put_group(
    State(shared): State<Shared>,
    Extension(Caller(caller)): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Answered {
    let fields = form::parse(&body);
    check_fields(&fields, &["description", "roles", "ldap_group_ref"])?;
    let text = |name| field(&fields, name).unwrap_or_default();
    let (description, reference) = (text("description"), text("ldap_group_ref"));
    let roles = roles(&shared, &text("roles"))?;
    change(&shared, move |kept| kept.put_group(&caller, &name, (&description, &reference), &roles)).await?;
    Ok(changed())
}

/// `DELETE /settings/rbac/groups/NAME`
pub(super) async fn remove_group(
    State(shared): State<Shared>,
    Extension(Caller(caller)): Extension<Caller>,
    Path(name): Path<String>,
) -> Answered {
    change(&shared, move |kept| kept.remove_group(&caller, &name)).await.map(|()| changed())
}

/// `GET /settings/rbac/roles`: each role, with `*` for what it can be narrowed to.
pub(super) async fn list_roles() -> Json<Value> {
    let role = |row: &RoleRow| {
        let mut told = json!({ "role": row.name, "name": row.title, "desc": row.doc });
        let depths = [
            ("bucket_name", Takes::Bucket),
            ("scope_name", Takes::Scope),
            ("collection_name", Takes::Collection),
        ];
        for (field, depth) in depths {
            if row.takes >= depth {
                told[field] = ALL_BUCKETS.into();
            }
        }
        told
    };
    Json(ROLES.iter().map(role).collect())
}

/// `POST /controller/changePassword`: the caller's own.
pub(super) async fn change_password(
    State(shared): State<Shared>,
    Extension(Caller(caller)): Extension<Caller>,
    body: Bytes,
) -> Answered {
    check_kept(&shared, caller.name())?;
    let missing = || UsersRefusal::Field("password", "The value must be supplied".to_owned());
    let text = field(&form::parse(&body), "password").ok_or_else(missing)?;
    let password = derived(&shared, text).await?;
    let env = shared.node.env().clone();
    change(&shared, move |kept| kept.set_password(caller.name(), &password, &env)).await.map(|()| done())
}

/// `GET /settings/passwordPolicy`
pub(super) async fn policy(State(shared): State<Shared>) -> Answered {
    Ok(Json(kept(&shared).await?.policy().clone()).into_response())
}

/// `POST /settings/passwordPolicy`: what is not named stays.
pub(super) async fn set_policy(State(shared): State<Shared>, body: Bytes) -> Answered {
    let fields = form::parse(&body);
    // Once before, so that all that is wrong with the form is told, also where nothing can be changed.
    if let Err(errors) = changed_policy(&fields, kept(&shared).await?.policy()) {
        return Ok((StatusCode::BAD_REQUEST, Json(json!({ "errors": errors }))).into_response());
    }
    // Of no field anything is wrong whatever the policy before was.
    let change_policy = move |kept: &mut KeptUsers| match changed_policy(&fields, kept.policy()) {
        Ok(policy) => kept.set_policy(policy),
        Err(_) => Ok(()),
    };
    change(&shared, change_policy).await.map(|()| done())
}

/// The policy with these fields changed; else what is wrong, by field.
fn changed_policy(
    fields: &[(String, String)],
    present: &PasswordPolicy,
) -> Result<PasswordPolicy, BTreeMap<String, String>> {
    let (mut policy, mut wrong) = (present.clone(), BTreeMap::new());
    for (at, (name, value)) in fields.iter().enumerate() {
        let set = match name.as_str() {
            _ if fields[..at].iter().any(|(before, _)| before == name) => {
                Err("The setting is given twice".to_owned())
            }
            "minLength" => set_min_length(&mut policy, value),
            "enforceUppercase" => set_flag(&mut policy.enforce_uppercase, value),
            "enforceLowercase" => set_flag(&mut policy.enforce_lowercase, value),
            "enforceDigits" => set_flag(&mut policy.enforce_digits, value),
            "enforceSpecialChars" => set_flag(&mut policy.enforce_special_chars, value),
            _ => Err("There is no such setting".to_owned()),
        };
        if let Err(what) = set {
            wrong.insert(name.clone(), what);
        }
    }
    if wrong.is_empty() { Ok(policy) } else { Err(wrong) }
}

fn set_min_length(policy: &mut PasswordPolicy, value: &str) -> Result<(), String> {
    let length = value.parse().ok().filter(|length| *length <= MOST_MIN_LENGTH);
    policy.min_length = length
        .ok_or_else(|| format!("The value of \"minLength\" must be in range from 0 to {MOST_MIN_LENGTH}"))?;
    Ok(())
}

fn set_flag(flag: &mut bool, value: &str) -> Result<(), String> {
    *flag = value.parse().map_err(|_| "The value must be true or false")?;
    Ok(())
}

/// `GET /whoami`
pub(super) async fn who_am_i(Extension(Caller(caller)): Extension<Caller>) -> Json<Value> {
    let caller: &User = &caller;
    let roles: Vec<Value> = caller.grants().iter().map(grant).collect();
    Json(json!({ "id": caller.name(), "domain": LOCAL, "roles": roles }))
}
