//! `bywash neigh`.

use bywash_engine::request::{NEIGHBOUR_STATES, NeighbourRow, NeighbourWords, Request};
use bywash_engine::scoped::{ScopedAddress, ScopedPrefix};

use super::words::{ALL, Verb, Words, one_of};
use super::{Args, change, flush, rows, show};
use crate::failure::Failure;

/// What is entered by hand.
const PERMANENT: &str = "permanent";

/// Shows or changes neighbours.
pub(crate) fn neighbours(args: &Args) -> Result<bool, Failure> {
    let (verb, words) = Verb::of(&args.words, &ALL)?;
    let known = match verb {
        Verb::Get => &["to", "dev"][..],
        Verb::Show | Verb::Flush => &["to", "dev", "nud"],
        // Of one that is deleted the Ethernet address says nothing, as with Linux.
        Verb::Add | Verb::Replace | Verb::Change | Verb::Delete => &["to", "dev", "nud", "lladdr"],
    };
    let words = Words::parse(words, known, &[])?;
    let interface = words.value("dev").map(String::from);
    let states = NEIGHBOUR_STATES.map(|(_, name)| name);
    let nud = one_of("nud", words.value("nud"), &states)?;
    if verb == Verb::Get {
        ScopedAddress::of(words.needed()?).map_err(Failure::Usage)?;
    }
    if matches!(verb, Verb::Show | Verb::Flush | Verb::Get) {
        return select(args, verb, &words, interface);
    }
    if nud.is_some_and(|state| state != PERMANENT) {
        return Err(Failure::Usage("what is entered by hand is 'nud permanent'".into()));
    }
    let address = words.needed()?;
    args.family.check(address)?;
    if verb == Verb::Delete {
        return change(&args.show, &Request::RemoveNeighbour { address: address.into(), interface });
    }
    let mac = words.value("lladdr");
    let mac = mac.ok_or_else(|| Failure::Usage("its Ethernet address must follow: lladdr MAC".into()))?;
    let neighbour = NeighbourWords { address: address.into(), mac: mac.into(), interface };
    let request = match verb {
        Verb::Replace => Request::ReplaceNeighbour(neighbour),
        Verb::Change => Request::ChangeNeighbour(neighbour),
        _ => Request::AddNeighbour(neighbour),
    };
    change(&args.show, &request)
}

fn select(args: &Args, verb: Verb, words: &Words<'_>, interface: Option<String>) -> Result<bool, Failure> {
    let to = words.object()?.filter(|word| *word != "all").map(ScopedPrefix::of).transpose();
    let to = to.map_err(Failure::Usage)?;
    let interface = match &to {
        Some(to) => to.interface(interface.as_deref()).map_err(Failure::Usage)?.map(String::from),
        None => interface,
    };
    let nud = words.value("nud");
    let wanted = |row: &NeighbourRow| {
        // As with iproute2, what is permanent is flushed only where that is said.
        let state = match nud {
            None => verb != Verb::Flush || row.state != PERMANENT,
            Some(state) => state == "all" || row.state == state,
        };
        state
            && args.family.wants(&row.address)
            && to.as_ref().is_none_or(|to| {
                ScopedAddress::of(&row.address).is_ok_and(|address| to.prefix.contains(address.ip().into()))
            })
    };
    let request = Request::Neighbours { interface };
    if verb == Verb::Show {
        return show(&args.show, &request, wanted, line);
    }
    if verb == Verb::Get {
        // One that is asked for by name is missed.
        let address = words.needed()?;
        if rows(&args.show, &request, wanted)?.is_empty() {
            return Err(Failure::Usage(format!("{address} is no neighbour that is known")));
        }
        return show(&args.show, &request, wanted, line);
    }
    words.check_flush()?;
    let remove =
        |row: NeighbourRow| Request::RemoveNeighbour { address: row.address, interface: Some(row.interface) };
    flush(&args.show, &request, wanted, remove)
}

fn line(row: &NeighbourRow) -> Vec<String> {
    vec![
        row.address.clone(),
        format!("dev {}", row.interface),
        row.mac.clone().unwrap_or_default(),
        row.state.clone(),
    ]
}
