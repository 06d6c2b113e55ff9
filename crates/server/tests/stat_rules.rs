//! Every number that a group of stats tells has a rule in `tests/recordings/stat_rules.txt`: its unit, its bounds, what
//! moves it and by how much. A load is sent to a whole node, step by step, and each step is compared with the rules.
//! The same load is sent to buckets of other kinds, for numbers that an ordinary one does not tell. What this load does not
//! bring about is done in worlds of their own (`stat_rules/worlds.rs`), and a number that no step of any of them moves is
//! listed with the reason in `tests/recordings/stat_unmoved.txt`.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "support/mod.rs"]
mod support;
#[path = "stat_rules/worlds.rs"]
mod worlds;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use base::{Cas, VbId};
use node::stats::GROUPS;
use protocol::feature::Feature;
use protocol::{RequestParts, Status, opcode};
use support::{Client, VBUCKETS, start, vb};

/// What is written of numbers, and of those that no step moves. It is read when the test runs, so that a table can be tried
/// without a build.
fn written(file: &str) -> String {
    let path = format!("{}/../../tests/recordings/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Groups without numbers of their own in an ordinary bucket, and why.
const WITHOUT: &[(&str, &str)] = &[
    ("bucket_details", "JSON about settings"),
    ("client_connection_details", "JSON about addresses"),
    ("collections-byid", "as collections"),
    ("dispatcher", "what threads do at the moment"),
    ("ephemeral", "of a bucket of another kind: see OTHERS"),
    ("external-auth-timings", "empty"),
    ("info", "JSON about the version"),
    ("json_validate", "a histogram as JSON; one look in 64 is timed"),
    ("key-byid", "as key"),
    ("prev-vbucket", "roles"),
    ("range-scans", "empty without a scan: see OTHERS"),
    ("reset", "changes what the others tell"),
    ("responses", "JSON by status"),
    ("scopes-byid", "as scopes"),
    ("slow-operations", "JSON of each operation"),
    ("snapshot-details", "empty without a snapshot"),
    ("snappy_decompress", "a histogram as JSON; one look in 64 is timed"),
    ("subdoc_execute", "a histogram as JSON"),
    ("tasks", "JSON of each task"),
    ("tasks-all", "JSON of each task"),
    ("uuid", "a name"),
    ("vbucket", "roles"),
    ("vkey-byid", "as key"),
    ("worker_thread_info", "JSON of each worker"),
];

/// What is sent for a group: its name with what it needs behind it.
fn key_of(group: &str) -> String {
    match group {
        "key" | "vkey" => format!("{group} k0 {}", vb(b"k0")),
        "durability-monitor" | "dcp-vbtakeover" => format!("{group} {}", vb(b"k0")),
        "disk-slowness" => "disk-slowness 1".to_owned(),
        "dcpagg" => "dcpagg :".to_owned(),
        "hash" | "diskinfo" => format!("{group} detail"),
        "locks" => "locks histogram".to_owned(),
        group => group.to_owned(),
    }
}

/// A name without numbers: of vBuckets, of ranges of histograms, of entries; and without identities of scans.
fn masked(name: &str) -> String {
    let is_scan = |part: &str| part.len() == 32 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<&str> = name.split(':').map(|part| if is_scan(part) { "0" } else { part }).collect();
    let name = parts.join(":");
    let mut out = String::new();
    let mut rest = &name[..];
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, number) = rest.split_at(at);
        let digits = number.bytes().take_while(u8::is_ascii_digit).count();
        out += before;
        // A number inside a word is part of the name, as in `rw_0` or `p99`.
        let is_own = before.is_empty() || before.ends_with([':', ',', '_', '-', '.']);
        out += if is_own { "N" } else { &number[..digits] };
        rest = &number[digits..];
    }
    out + rest
}

/// What one group told: by masked name, all numbers.
type Told = BTreeMap<(String, String), Vec<f64>>;

fn look(client: &mut Client) -> Told {
    let mut told = Told::new();
    for group in GROUPS.iter().filter(|group| !WITHOUT.iter().any(|(name, _)| *name == group.name)) {
        let status = look_at(client, group.name, &key_of(group.name), &mut told);
        assert_eq!(status, Status::Success, "{}", group.name);
    }
    assert_eq!(look_at(client, "diskinfo", "diskinfo", &mut told), Status::Success);
    told
}

/// Buckets of other kinds, by how the configuration has them, with groups that they refuse. Numbers that an ordinary bucket
/// does not tell have rules whose groups begin with this kind and a slash; for all others the bounds are those of an ordinary
/// one.
const OTHERS: [(&str, &[&str]); 2] = [("ephemeral", &["vkey"]), ("magma", &[])];

fn look_at_other(client: &mut Client, refused: &[&str]) -> Told {
    let mut told = Told::new();
    let is_asked = |name: &str| {
        ["ephemeral", "range-scans"].contains(&name) || !WITHOUT.iter().any(|(without, _)| *without == name)
    };
    for group in GROUPS.iter().filter(|group| is_asked(group.name)) {
        let status = look_at(client, group.name, &key_of(group.name), &mut told);
        assert_eq!(status != Status::Success, refused.contains(&group.name), "{}: {status:?}", group.name);
    }
    look_at(client, "diskinfo", "diskinfo", &mut told);
    told
}

/// What a node with copies tells, but of documents: what is asked about a document of a pending vBucket waits.
fn look_at_replica(client: &mut Client) -> Told {
    let mut told = Told::new();
    let is_asked =
        |name: &str| !["key", "vkey"].contains(&name) && !WITHOUT.iter().any(|(without, _)| *without == name);
    for group in GROUPS.iter().filter(|group| is_asked(group.name)) {
        let status = look_at(client, group.name, &key_of(group.name), &mut told);
        assert_eq!(status, Status::Success, "{}", group.name);
    }
    told
}

/// Adds what one group tells, if it is not refused.
fn look_at(client: &mut Client, group: &str, key: &str, told: &mut Told) -> Status {
    let ask = RequestParts { opcode: opcode::STAT, key: key.as_bytes(), ..RequestParts::default() };
    let mut frame = client.request(&ask);
    let status = frame.status;
    let group = if group.is_empty() { "all" } else { group };
    while status == Status::Success && !frame.key.is_empty() {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if let Ok(number) = text(&frame.value).parse::<f64>() {
            told.entry((group.to_owned(), masked(&text(&frame.key)))).or_default().push(number);
        }
        frame = client.receive();
    }
    status
}

/// A step of the load.
type Step = (&'static str, fn(&mut Client));

fn parts<'a>(opcode: u8, key: &'a [u8], extras: &'a [u8], value: &'a [u8]) -> RequestParts<'a> {
    RequestParts { opcode, key, extras, value, vbucket: vb(key), ..RequestParts::default() }
}

fn expect(client: &mut Client, parts: &RequestParts<'_>, status: Status) {
    assert_eq!(client.request(parts).status, status);
}

const STORED: usize = 40;
const VALUE: &[u8] = &[b'v'; 100];

fn store(client: &mut Client) {
    for at in 0..STORED {
        let key = format!("k{at}");
        expect(client, &parts(opcode::SET, key.as_bytes(), &[0; 8], VALUE), Status::Success);
    }
}

fn hit(client: &mut Client) {
    (0..30).for_each(|at| {
        expect(client, &parts(opcode::GET, format!("k{at}").as_bytes(), &[], &[]), Status::Success);
    });
}

fn miss(client: &mut Client) {
    (0..10).for_each(|at| {
        expect(client, &parts(opcode::GET, format!("none{at}").as_bytes(), &[], &[]), Status::KeyEnoent);
    });
}

fn delete(client: &mut Client) {
    (30..35).for_each(|at| {
        expect(client, &parts(opcode::DELETE, format!("k{at}").as_bytes(), &[], &[]), Status::Success);
    });
}

fn count(client: &mut Client) {
    for _ in 0..7 {
        expect(client, &parts(opcode::INCREMENT, b"n", &[0; 20], &[]), Status::Success);
        expect(client, &parts(opcode::DECREMENT, b"n", &[0; 20], &[]), Status::Success);
    }
}

fn compare(client: &mut Client) {
    let set = parts(opcode::SET, b"k1", &[0; 8], VALUE);
    (0..4).for_each(|_| expect(client, &RequestParts { cas: Cas(1), ..set }, Status::KeyEexists));
}

fn lock(client: &mut Client) {
    expect(client, &parts(opcode::GET_LOCKED, b"k2", &[0, 0, 0, 30], &[]), Status::Success);
    (0..3).for_each(|_| expect(client, &parts(opcode::SET, b"k2", &[0; 8], VALUE), Status::Locked));
}

fn prepare(client: &mut Client) {
    // One framing extra: durability, one byte, majority.
    let set = parts(opcode::SET, b"k3", &[0; 8], VALUE);
    (0..2).for_each(|_| expect(client, &RequestParts { frame_infos: &[0x11, 1], ..set }, Status::Success));
}

fn meta(client: &mut Client) {
    (0..3).for_each(|_| expect(client, &parts(opcode::GET_META, b"k4", &[], &[]), Status::Success));
}

fn elsewhere(client: &mut Client) {
    let get = RequestParts { vbucket: VbId(VBUCKETS), ..parts(opcode::GET, b"k5", &[], &[]) };
    (0..2).for_each(|_| expect(client, &get, Status::NotMyVbucket));
}

/// The CAS of what is asked for.
fn cas_of(client: &mut Client, key: &[u8]) -> Cas {
    let found = client.request(&parts(opcode::GET, key, &[], &[]));
    assert_eq!(found.status, Status::Success);
    found.cas
}

/// Changes with the document's own CAS.
fn agree(client: &mut Client) {
    for _ in 0..3 {
        let cas = cas_of(client, b"k6");
        let set = RequestParts { cas, ..parts(opcode::SET, b"k6", &[0; 8], VALUE) };
        expect(client, &set, Status::Success);
    }
}

/// Changes of what is not there.
fn absent(client: &mut Client) {
    // An increment that makes no document.
    let extras = [&[0; 16][..], &[0xff; 4]].concat();
    expect(client, &parts(opcode::INCREMENT, b"gone", &extras, &[]), Status::KeyEnoent);
    (0..2).for_each(|_| expect(client, &parts(opcode::DECREMENT, b"gone", &extras, &[]), Status::KeyEnoent));
    (0..3).for_each(|_| expect(client, &parts(opcode::DELETE, b"gone", &[], &[]), Status::KeyEnoent));
    let set = parts(opcode::SET, b"gone", &[0; 8], VALUE);
    (0..4).for_each(|_| expect(client, &RequestParts { cas: Cas(1), ..set }, Status::KeyEnoent));
}

/// Documents stored and deleted with metadata of elsewhere: newer ones, and then those that lose.
fn with_meta(client: &mut Client) {
    // Near the node's clock, so that it is not far off.
    let now = cas_of(client, b"k6").0;
    let extras =
        |revision: u64| [&[0; 8][..], &revision.to_be_bytes(), &(now + revision).to_be_bytes()].concat();
    for (revision, status) in [(2_000, Status::Success), (1_000, Status::KeyEexists)] {
        expect(client, &parts(opcode::SET_WITH_META, b"meta", &extras(revision), VALUE), status);
    }
    for (revision, status) in
        [(1_000, Status::KeyEexists), (1_500, Status::KeyEexists), (3_000, Status::Success)]
    {
        expect(client, &parts(opcode::DELETE_WITH_META, b"meta", &extras(revision), &[]), status);
    }
}

/// Documents stored and deleted whose new metadata are answered.
fn answered(client: &mut Client) {
    let extras = |mutation: u32| [&mutation.to_be_bytes()[..], &[0; 8]].concat();
    (0..2).for_each(|_| {
        expect(client, &parts(opcode::RETURN_META, b"told", &extras(1), VALUE), Status::Success);
    });
    expect(client, &parts(opcode::RETURN_META, b"told", &extras(3), &[]), Status::Success);
}

/// A document that has expired when it is asked for: the time is long over.
fn expire(client: &mut Client) {
    let extras = [&[0; 4][..], &(31 * 24 * 3_600_u32).to_be_bytes()].concat();
    expect(client, &parts(opcode::SET, b"old", &extras, VALUE), Status::Success);
    (0..2).for_each(|_| expect(client, &parts(opcode::GET, b"old", &[], &[]), Status::KeyEnoent));
}

/// A value that has left memory and comes back from the disk; an ephemeral bucket keeps what it has.
fn fetch(client: &mut Client) {
    for key in [b"k7", b"k8", b"k9"] {
        let _ = client.request(&parts(opcode::EVICT_KEY, key, &[], &[]));
        expect(client, &parts(opcode::GET, key, &[], &[]), Status::Success);
    }
}

/// A password that is wrong.
fn guess(client: &mut Client) {
    let mut stranger = client.again();
    let plain = parts(opcode::SASL_AUTH, b"PLAIN", &[], b"\0Administrator\0wrong");
    let plain = RequestParts { vbucket: VbId(0), ..plain };
    expect(&mut stranger, &plain, Status::AuthError);
}

/// Looks into a document that is there and changes it, by a path.
fn by_path(client: &mut Client) {
    let of = |code: u8, value: &'static [u8]| parts(code, b"json", &[0, 1, 0], value);
    expect(client, &parts(opcode::SET, b"json", &[0; 8], br#"{"a":1}"#), Status::Success);
    (0..2).for_each(|_| expect(client, &of(opcode::SUBDOC_GET, b"a"), Status::Success));
    expect(client, &of(opcode::SUBDOC_DICT_UPSERT, b"b2"), Status::Success);
}

const STEPS: [Step; 18] = [
    ("store", store),
    ("hit", hit),
    ("miss", miss),
    ("delete", delete),
    ("count", count),
    ("compare", compare),
    ("lock", lock),
    ("prepare", prepare),
    ("meta", meta),
    ("elsewhere", elsewhere),
    ("agree", agree),
    ("absent", absent),
    ("with_meta", with_meta),
    ("answered", answered),
    ("expire", expire),
    ("fetch", fetch),
    ("guess", guess),
    ("by_path", by_path),
];

/// The steps of the load on one bucket, of any kind.
fn steps() -> Vec<&'static str> {
    STEPS.iter().map(|(name, _)| *name).collect()
}

/// The steps of each world that has its own, by the name of the world.
fn steps_of_worlds() -> [(&'static str, Vec<&'static str>); 2] {
    [
        ("driven", worlds::DRIVEN.iter().map(|(name, _)| *name).collect()),
        ("followed", worlds::FOLLOWED.iter().map(|(name, _)| *name).collect()),
    ]
}

/// How a number is measured, and what is true of every number of that unit.
const UNITS: [&str; 15] = [
    "count", "bytes", "items", "ns", "us", "ms", "s", "percent", "ratio", "flag", "seqno", "id", "time",
    "limit", "setting",
];

/// What a step does to a number, summed over vBuckets and ranges.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Move {
    /// By exactly this.
    By(f64),
    Grows,
    Shrinks,
}

/// A rule, as a line of the table has it.
#[derive(Debug)]
struct Rule {
    unit: String,
    least: f64,
    most: f64,
    moves: BTreeMap<String, Move>,
    /// Steps that are not named leave it alone.
    is_strict: bool,
}

impl Rule {
    fn parse(fields: &[&str], steps: &[&str]) -> Rule {
        let &[unit, least, most, moves] = fields else { panic!("unit, least, most, moves: {fields:?}") };
        assert!(UNITS.contains(&unit), "{unit} is no unit: {UNITS:?}");
        let number = |text: &str| text.parse::<f64>().unwrap_or_else(|_| panic!("{text}: {fields:?}"));
        let mut rule = Rule {
            unit: unit.to_owned(),
            least: number(least),
            most: number(most),
            moves: BTreeMap::new(),
            is_strict: true,
        };
        for word in moves.split(',') {
            match word {
                "=" => {}
                "~" => rule.is_strict = false,
                word => {
                    let at = word.find(['+', '-']).unwrap_or_else(|| panic!("{word}: no + or -: {fields:?}"));
                    let (step, by) = word.split_at(at);
                    assert!(steps.contains(&step), "{step} is no step");
                    let by = match by {
                        "+" => Move::Grows,
                        "-" => Move::Shrinks,
                        by => Move::By(number(by)),
                    };
                    rule.moves.insert(step.to_owned(), by);
                }
            }
        }
        rule
    }

    /// What of it is not so of these numbers.
    fn bounds(&self, numbers: &[f64]) -> Option<String> {
        let is_whole = !matches!(&self.unit[..], "us" | "percent" | "ratio" | "setting" | "time");
        let wrong = numbers.iter().find(|number| {
            !(self.least..=self.most).contains(*number) || (is_whole && number.fract() != 0.0)
        })?;
        Some(format!("{wrong} is not within {} to {} {}", self.least, self.most, self.unit))
    }

    /// What of it is not so of a step.
    fn step(&self, step: &str, by: f64) -> Option<String> {
        let is_so = match self.moves.get(step) {
            Some(Move::By(wanted)) => by == *wanted,
            Some(Move::Grows) => by > 0.0,
            Some(Move::Shrinks) => by < 0.0,
            None => !self.is_strict || by == 0.0,
        };
        (!is_so).then(|| format!("step {step} moves it by {by}, and not by {:?}", self.moves.get(step)))
    }
}

type Rules = BTreeMap<(String, String), Rule>;

fn rules(table: &str) -> Rules {
    let mut rules = Rules::new();
    let (ordinary, worlds) = (steps(), steps_of_worlds());
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (group, name) = (fields[0].to_owned(), fields[1].to_owned());
        let world =
            worlds.iter().find(|(world, _)| group.split_once('/').is_some_and(|(kind, _)| kind == *world));
        let rule = Rule::parse(&fields[2..], world.map_or(&ordinary, |(_, steps)| steps));
        let before = rules.insert((group, name), rule);
        assert!(before.is_none(), "{line}: there is another rule for it");
    }
    rules
}

/// The rule of a number: that of its whole name, or one with a `*`.
fn rule_of<'r>(rules: &'r Rules, (group, name): &(String, String)) -> Option<&'r Rule> {
    let fits = |pattern: &str| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end),
        (_, Some(begin)) => name.starts_with(begin),
        _ => false,
    };
    let with_star =
        || rules.iter().find(|((of, pattern), _)| of == group && fits(pattern)).map(|(_, rule)| rule);
    rules.get(&(group.clone(), name.clone())).or_else(with_star)
}

fn sum(told: &Told, of: &(String, String)) -> f64 {
    told.get(of).map_or(0.0, |numbers| numbers.iter().sum())
}

/// What is not as the rules have it, in a bucket of a kind of [`OTHERS`], in a world with its own steps, or in an ordinary
/// bucket (`""`). `looks` begins with what there was before the first step.
fn wrong(rules: &Rules, kind: &str, steps: &[&str], looks: &[Told]) -> Vec<String> {
    let own = |(group, name): &(String, String)| {
        let group = if kind.is_empty() { group.clone() } else { format!("{kind}/{group}") };
        (group, name.clone())
    };
    let names: BTreeSet<_> = looks.iter().flat_map(BTreeMap::keys).collect();
    let mut wrong = Vec::new();
    for name in &names {
        let of_kind = rule_of(rules, &own(name));
        let said = own(name);
        let said = format!("{} {}", said.0, said.1);
        let Some(rule) = of_kind.or_else(|| rule_of(rules, name)) else {
            wrong.push(format!("{said} has no rule: {}", observed(steps, looks, name)));
            continue;
        };
        if std::env::var_os(OBSERVED).is_some() {
            println!("{said} {} {}", rule.unit, observed(steps, looks, name));
        }
        let out = looks.iter().find_map(|told| rule.bounds(told.get(*name)?));
        wrong.extend(out.map(|why| format!("{said}: {why}")));
        for (step, pair) in steps.iter().zip(looks.windows(2)).filter(|_| of_kind.is_some()) {
            let why = rule.step(step, sum(&pair[1], name) - sum(&pair[0], name));
            wrong.extend(why.map(|why| format!("{said}: {why}")));
        }
    }
    let all: BTreeSet<_> = names.iter().map(|name| own(name)).collect();
    let is_of_kind = |group: &str| group.split_once('/').map_or("", |(kind, _)| kind) == kind;
    let unknown =
        rules.keys().filter(|name| is_of_kind(&name.0) && !name.1.contains('*') && !all.contains(name));
    wrong.extend(unknown.map(|name| format!("{} {}: there is a rule, and no such number", name.0, name.1)));
    wrong
}

/// With this in the environment, what was observed of each number is printed.
const OBSERVED: &str = "STAT_RULES_OBSERVED";

/// What there was of a number, as a rule would have it.
fn observed(steps: &[&str], looks: &[Told], name: &(String, String)) -> String {
    let all: Vec<f64> = looks.iter().filter_map(|told| told.get(name)).flatten().copied().collect();
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    let most = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut moves = String::new();
    for (step, pair) in steps.iter().zip(looks.windows(2)) {
        let by = sum(&pair[1], name) - sum(&pair[0], name);
        if by != 0.0 {
            write!(moves, "{}{step}{by:+}", if moves.is_empty() { "" } else { "," }).expect("text");
        }
    }
    format!("{least} {most} {}", if moves.is_empty() { "=" } else { &moves })
}

/// Numbers that no step of any world moves and for which there is no reason, and reasons that are of no use.
/// A reason is a line `GROUP NAME | WHY`; the group may be `*`, and the name may begin or end with one, or be a unit in
/// parentheses.
fn unmoved(rules: &Rules, reasons: &str) -> Vec<String> {
    let of_ordinary = |group: &str| group.split_once('/').map_or(group, |(_, group)| group).to_owned();
    let all = || rules.iter().map(|((group, name), rule)| ((of_ordinary(group), &**name), rule));
    let moved: BTreeSet<(String, &str)> =
        all().filter(|(_, rule)| !rule.moves.is_empty()).map(|(of, _)| of).collect();
    let still: BTreeMap<(String, &str), &str> =
        all().filter(|(of, _)| !moved.contains(of)).map(|(of, rule)| (of, &*rule.unit)).collect();
    let fits = |pattern: &str, name: &str| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end),
        (_, Some(begin)) => name.starts_with(begin),
        _ => name == pattern,
    };
    let mut wrong = Vec::new();
    let mut explained = BTreeSet::new();
    for line in reasons.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (of, why) = line.split_once(" | ").unwrap_or((line, ""));
        let (group, name) = of.split_once(' ').unwrap_or((of, ""));
        let unit = name.strip_prefix('(').and_then(|unit| unit.strip_suffix(')'));
        let is_meant = |((of, is), is_in): &(&(String, &str), &&str)| {
            fits(group, of) && unit.map_or_else(|| fits(name, is), |unit| unit == **is_in)
        };
        let here = still.iter().filter(is_meant).map(|(of, _)| of.clone());
        if here.filter(|of| explained.insert(of.clone())).count() == 0 || why.trim().is_empty() {
            wrong.push(format!(
                "stat_unmoved.txt: {line}: no reason, or nothing left that it is the reason for"
            ));
        }
    }
    let unexplained = still.keys().filter(|of| !explained.contains(*of));
    wrong.extend(unexplained.map(|(group, name)| {
        format!(
            "{group} {name}: no step moves it: add one, or say why not in tests/recordings/stat_unmoved.txt"
        )
    }));
    wrong
}

/// Waits until everything is saved, so that what the flusher does belongs to the step before.
fn settle(client: &mut Client) {
    while client.stat("", "ep_diskqueue_items") != "0" || client.stat("", "ep_flusher_queue_vbuckets") != "0"
    {
    }
}

fn looks() -> Vec<Told> {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let mut client = Client::connect(&server, "default", &[]);
    let mut observer = Client::connect(&server, "default", &[]);
    expect(&mut client, &parts(opcode::SET, b"n", &[0; 8], b"10"), Status::Success);
    expect(&mut client, &parts(opcode::SET, b"k0", &[0; 8], VALUE), Status::Success);
    let mut streams = Client::connect(&server, "default", &[]);
    expect(&mut streams, &parts(opcode::DCP_OPEN, b"rules", &[0, 0, 0, 0, 0, 0, 0, 1], &[]), Status::Success);
    settle(&mut observer);
    let mut looks = vec![look(&mut observer)];
    for (_, step) in STEPS {
        step(&mut client);
        settle(&mut observer);
        looks.push(look(&mut observer));
    }
    // It comes once a second, and takes locks where checkpoints are kept.
    let recovered = ("locks".to_owned(), "checkpoint_recovery_ns_N,N".to_owned());
    while !looks.last().is_some_and(|last| last.contains_key(&recovered)) {
        looks.push(look(&mut observer));
    }
    server.stop().expect("a clean stop");
    looks
}

/// Opens a scan of the keys of a vBucket, and has it tell the first one.
fn scan(client: &mut Client) {
    let same = (0..).map(|at| format!("scanned{at}")).filter(|key| vb(key.as_bytes()) == vb(b"k0")).take(2);
    same.for_each(|key| {
        expect(client, &parts(opcode::SET, key.as_bytes(), &[0; 8], VALUE), Status::Success);
    });
    settle(client);
    // Base64 of one zero byte and of one with all bits.
    let range = br#"{"range":{"start":"AA==","end":"/w=="},"key_only":true}"#;
    let create = RequestParts {
        opcode: opcode::RANGE_SCAN_CREATE,
        value: range,
        datatype: base::Datatype::JSON.0,
        vbucket: vb(b"k0"),
        ..RequestParts::default()
    };
    let created = client.request(&create);
    assert_eq!(created.status, Status::Success);
    let one = [&created.value[..], &1u32.to_be_bytes(), &[0; 8]].concat();
    let go_on = RequestParts { vbucket: vb(b"k0"), ..parts(opcode::RANGE_SCAN_CONTINUE, b"", &one, b"") };
    assert_eq!(client.request(&go_on).status, Status::RangeScanMore);
}

fn looks_at_other(kind: &str, refused: &[&str]) -> Vec<Told> {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), &format!("buckets = [\"default:100MiB:{kind}\"]\n"));
    let mut client = Client::connect(&server, "default", &[Feature::Json]);
    let mut observer = Client::connect(&server, "default", &[]);
    let settled = |observer: &mut Client| {
        if kind != "ephemeral" {
            settle(observer);
        }
    };
    expect(&mut client, &parts(opcode::SET, b"n", &[0; 8], b"10"), Status::Success);
    expect(&mut client, &parts(opcode::SET, b"k0", &[0; 8], VALUE), Status::Success);
    if kind != "ephemeral" {
        scan(&mut client);
    }
    settled(&mut observer);
    let mut looks = vec![look_at_other(&mut observer, refused)];
    for (_, step) in STEPS {
        step(&mut client);
        settled(&mut observer);
        looks.push(look_at_other(&mut observer, refused));
    }
    server.stop().expect("a clean stop");
    looks
}

#[test]
fn every_number_has_a_rule_and_keeps_it() {
    let (rules, looks) = (rules(&written("stat_rules.txt")), looks());
    let steps = steps();
    let mut found = wrong(&rules, "", &steps, &looks);
    // One after the other: some numbers are of the whole process.
    for (kind, refused) in OTHERS {
        found.extend(wrong(&rules, kind, &steps, &looks_at_other(kind, refused)));
    }
    let [(driven, of_driven), (followed, of_followed)] = steps_of_worlds();
    found.extend(wrong(&rules, driven, &of_driven, &worlds::looks_at_driven()));
    found.extend(wrong(&rules, followed, &of_followed, &worlds::looks_at_followed()));
    found.extend(unmoved(&rules, &written("stat_unmoved.txt")));
    assert_eq!(found, Vec::<String>::new(), "{} rules are not kept:\n{}", found.len(), found.join("\n"));

    // The test itself can fail: a number that does not move, one that moves too much, one out of its bounds, one without a
    // rule, and a rule without a number.
    let named = |group: &str, name: &str| (group.to_owned(), name.to_owned());
    let with = |change: &dyn Fn(&mut Vec<Told>)| {
        let mut looks = looks.clone();
        change(&mut looks);
        wrong(&rules, "", &steps, &looks).join("\n")
    };
    let set = |looks: &mut [Told], name: &(String, String), number: f64| {
        looks.iter_mut().for_each(|told| drop(told.insert(name.clone(), vec![number])));
    };
    let (gets, percent) = (named("all", "get_hits"), named("all", "vb_active_perc_mem_resident"));
    let stands = with(&|looks| set(looks, &gets, 5.0));
    assert!(stands.contains("all get_hits: step hit moves it by 0"), "{stands}");
    let jumps = with(&|looks| set(&mut looks[5..], &gets, 1_000.0));
    assert!(jumps.contains("all get_hits: step count moves it by"), "{jumps}");
    let beyond = with(&|looks| set(&mut looks[5..], &percent, 101.0));
    assert!(beyond.contains("101 is not within 0 to 100 percent"), "{beyond}");
    let unknown = with(&|looks| set(looks, &named("all", "ep_planted"), 1.0));
    assert!(unknown.contains("all ep_planted has no rule"), "{unknown}");
    let gone = with(&|looks| looks.iter_mut().for_each(|told| drop(told.remove(&gets))));
    assert!(gone.contains("all get_hits: there is a rule, and no such number"), "{gone}");
}

#[test]
fn what_no_step_moves_has_a_reason() {
    let table =
        "all a count 0 1 store+1\nall b count 0 1 =\nall c_x count 0 1 ~\ndriven/all b count 0 1 fill+1\n";
    let rules = rules(table);
    let said = |reasons: &str| unmoved(&rules, reasons);
    assert!(said("all c_* | it depends on the machine").is_empty());
    assert!(said("* c_x | it depends on the machine").is_empty());
    assert!(said("").iter().any(|wrong| wrong.contains("all c_x: no step moves it")), "{:?}", said(""));
    for stale in ["all a | moved", "all b | moved in another world", "all d | there is none", "all c_x | "] {
        assert!(!said(&format!("all c_* | why\n{stale}")).is_empty(), "{stale}");
    }
}

#[test]
fn names_are_masked() {
    for (name, expected) in [
        ("vb_0:high_seqno", "vb_N:high_seqno"),
        ("vb_12:1:id", "vb_N:N:id"),
        ("Get_0,1", "Get_N,N"),
        ("rw_0:commit_16,32", "rw_N:commit_N,N"),
        ("mem_used", "mem_used"),
        ("p99", "p99"),
        ("0x8:items", "Nx8:items"),
        ("vb_7:0123456789abcdef0123456789abcdef:age_ms", "vb_N:N:age_ms"),
    ] {
        assert_eq!(masked(name), expected);
    }
}
