//! Tests of the catalog: what it promises survives faults, and what it does not promise is not believed.

use base::env::Env;
use base::env::sim::{Call, Effect, Fault, On, Survival};

use super::*;

const DIR: &str = "/data";

fn contents(sequence: u64) -> Contents {
    let files = (0..1024).map(|vb| {
        let read = vb != 7;
        let at = FileAt {
            revision: 3,
            header_offset: if read { 4096 * (vb + 1) } else { FileAt::LAST },
            checksum: read.then_some(u32::MAX - vb as u32),
        };
        let listed = Listed { at, high_seqno: read.then_some(vb * 1000), is_tail_void: vb == 7 };
        (VbId(vb as u16), listed)
    });
    let believe = Believe::Journal { generation: 9, salt: 0x0123_4567_89ab_cdef };
    Contents { store: StoreId(17 << 64), sequence, believe, generations: 9, files: files.collect() }
}

#[test]
fn text_and_back() {
    for believe in [Believe::Files, Believe::Headers, contents(1).believe] {
        let contents = Contents { believe, ..contents(1) };
        let text = contents.to_text();
        assert!(text.len() as u64 * 2 <= MAX_BYTES, "{} bytes", text.len());
        assert_eq!(Contents::from_text(text.as_bytes()), Ok(contents));
    }
}

#[test]
fn the_example_of_the_format_is_read() {
    let page = include_str!("../../../../docs/catalog_format.md");
    let example = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    let example = example.expect("there is one");
    let contents = Contents::from_text(example.as_bytes()).expect("it is sound");
    assert_eq!((contents.sequence, contents.believe, contents.generations), (12, Believe::Files, 7));
    assert_eq!(contents.to_text(), example);
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    let mut few = contents(1);
    few.files.retain(|vb, _| vb.0 < 3);
    let text = few.to_text().into_bytes();
    for bit in 0..text.len() * 8 {
        let mut flipped = text.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let found = Contents::from_text(&flipped);
        assert!(found.is_err(), "bit {bit}: {found:?}");
    }
    for len in 0..text.len() {
        assert!(Contents::from_text(&text[..len]).is_err(), "{len} bytes");
    }
    let newer = few.to_text().replacen("catalog 1", "catalog 2", 1);
    let what = Contents::from_text(newer.as_bytes()).expect_err("unknown");
    assert!(what.contains("'stave catalog 2'"), "{what}");
}

/// A write that fails anywhere, or loses power there, leaves the catalog of before or the new one.
#[test]
fn a_write_is_whole_or_not_there() {
    for call in [Call::Open, Call::SetLen, Call::Write, Call::Sync, Call::Rename, Call::SyncDir] {
        for nth in 1..4 {
            let (env, handles) = Env::sim(1);
            env.disk.create_dir_all_synced(DIR.as_ref()).expect("the disk works");
            let catalog = Catalog::open(&env, DIR.as_ref()).expect("there is none");
            assert_eq!(catalog.believe(), None);
            catalog.believe_files(contents(1).files, 4).expect("the disk works");
            let first = find(&*env.disk, DIR.as_ref()).expect("the disk works");
            handles.disk.plan(Fault::once(On::Kind(call), nth, Effect::IO_ERROR));
            let written = catalog.believe_journal(5, 6);
            handles.disk.heal();
            for seed in 0..20 {
                let disk = handles.disk.image(Survival::Seeded(seed));
                let Found::Catalog(found, None) = find(&disk, DIR.as_ref()).expect("the disk works") else {
                    panic!("{call:?} {nth}: no catalog");
                };
                let is_new = found.believe == Believe::Journal { generation: 5, salt: 6 };
                assert!(is_new || Found::Catalog(found, None) == first);
                assert!(is_new || written.is_err(), "{call:?} {nth}: acknowledged and not there");
            }
            catalog.believe_journal(5, 6).expect("the disk works again");
            let found = find(&handles.disk.image(Survival::Synced), DIR.as_ref()).expect("the disk works");
            assert!(matches!(found, Found::Catalog(Contents { believe: Believe::Journal { .. }, .. }, None)));
        }
    }
}

#[test]
fn one_damaged_copy_costs_nothing_and_two_are_damage() {
    let (env, handles) = Env::sim(1);
    env.disk.create_dir_all_synced(DIR.as_ref()).expect("the disk works");
    let catalog = Catalog::open(&env, DIR.as_ref()).expect("there is none");
    catalog.believe_files(contents(1).files, 4).expect("the disk works");
    let path = |name: &str| Path::new(DIR).join(name);
    for name in NAMES {
        handles.disk.rot(&path(name), 40, 1).expect("it is there");
        let Found::Catalog(found, Some(what)) = find(&*env.disk, DIR.as_ref()).expect("the disk works")
        else {
            panic!("{name}: not found");
        };
        assert!(what.contains(name) && what.contains("checksum"), "{what}");
        assert_eq!(found.files, contents(1).files);
        Catalog::open(&env, DIR.as_ref()).expect("sound").believe_headers().expect("the disk works");
        let healed = find(&*env.disk, DIR.as_ref()).expect("the disk works");
        assert!(matches!(healed, Found::Catalog(_, None)));
    }
    for name in NAMES {
        handles.disk.rot(&path(name), 40, 1).expect("it is there");
    }
    let failure = Catalog::open(&env, DIR.as_ref()).err().expect("damaged").to_string();
    assert!(failure.contains("catalog") && failure.contains("checksum"), "{failure}");
}
