//! How a link is opened, refused, and what is left of it.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};

use bywash_drivers::OpenOptions;

use super::{End, Place, until};

fn refused(name: &str, options: &OpenOptions) -> String {
    End::try_open(name, options).err().unwrap_or_else(|| panic!("{name} was opened"))
}

#[test]
fn only_the_owner_may_connect_and_the_file_goes_with_the_port() {
    let place = Place::new();
    let first = End::open(&place.name(), &OpenOptions::default());
    assert_eq!(place.path().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    first.close();
    assert!(!place.path().exists());
}

#[test]
fn a_third_process_is_told_who_has_the_wire() {
    let place = Place::new();
    let options = OpenOptions::default();
    let (first, second) = (End::open(&place.name(), &options), End::open(&place.name(), &options));
    until("connected", || first.counter("connected") == 1);
    let error = refused(&place.name(), &options);
    assert!(
        error.contains(&format!("both its ends are in use by process {}", std::process::id())),
        "{error}"
    );
    until("counted", || first.counter("peers_refused") == 1);
    first.close();
    // The second goes on, and can be found.
    let third = End::open(&place.name(), &options);
    until("a new first end", || second.counter("connected") == 1 && second.counter("connections") == 2);
    third.close();
    second.close();
    assert!(!place.path().exists());
}

#[test]
fn both_ends_have_as_many_queues_and_each_its_own_ring() {
    let place = Place::new();
    let queues = |queues| OpenOptions { queues: Some(queues), ..OpenOptions::default() };
    let first = End::open(&place.name(), &queues(2));
    let error = refused(&place.name(), &queues(3));
    assert!(error.contains("was opened with 2 queues: open both alike (--queues)"), "{error}");
    assert!(refused(&place.name(), &queues(65)).contains("from 1 to 64"));
    let arena = bywash_frame::Arena::new(vec![0; 1 << 20]).unwrap();
    let options = OpenOptions { ring: Some(64), ..OpenOptions::default() };
    let mut second = bywash_drivers::open(&place.name().parse().unwrap(), &options, arena).unwrap().port;
    assert_eq!(second.queues().len(), 2);
    drop(second);
    drop(first);
}

#[test]
fn what_lies_at_the_path_is_left_alone_unless_it_is_a_socket_nobody_uses() {
    let place = Place::new();
    let options = OpenOptions::default();
    std::fs::write(place.path(), "a file of somebody's").unwrap();
    assert!(refused(&place.name(), &options).contains("no socket: name another path"));
    assert_eq!(std::fs::read(place.path()).unwrap(), b"a file of somebody's");
    std::fs::remove_file(place.path()).unwrap();

    let other = UnixListener::bind(place.path()).unwrap();
    assert!(refused(&place.name(), &options).contains("another program listens there"));
    drop(other);
    // Of another sort, but nobody listens any more.
    assert!(place.path().exists());
    std::fs::remove_file(place.path()).unwrap();
    drop(UnixDatagram::bind(place.path()).unwrap());
    End::open(&place.name(), &options).close();

    let nowhere = format!("link:{}/nowhere/x.sock", place.0.path().display());
    assert!(refused(&nowhere, &options).contains("there is no directory"));
    assert!(refused(&format!("{}/x", place.name()), &options).contains("directory"));
    let long = format!("link:{}/{}", place.0.path().display(), "x".repeat(120));
    assert!(refused(&long, &options).contains("at most 107 bytes"));
}

#[test]
fn a_socket_that_was_removed_is_made_again() {
    let place = Place::new();
    let options = OpenOptions::default();
    let first = End::open(&place.name(), &options);
    std::fs::remove_file(place.path()).unwrap();
    until("a new socket", || place.path().exists());
    let second = End::open(&place.name(), &options);
    until("connected", || first.counter("connected") == 1);
    second.close();
    first.close();
}
