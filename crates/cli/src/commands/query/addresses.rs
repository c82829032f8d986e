//! `bywash addr`.

use bywash_engine::request::{AddressRow, Request, prefix};
use bywash_engine::stack::Address;

use super::words::{Verb, Words};
use super::{Args, change, flush, show};
use crate::failure::Failure;

/// Shows or changes addresses.
pub(crate) fn addresses(args: &Args) -> Result<bool, Failure> {
    let may = [Verb::Show, Verb::Add, Verb::Replace, Verb::Delete, Verb::Flush];
    let (verb, words) = Verb::of(&args.words, &may)?;
    let request = match verb {
        Verb::Show | Verb::Flush => return select(args, verb, &Words::parse(words, &["dev", "to"], &[])?),
        Verb::Add | Verb::Replace | Verb::Get | Verb::Change => {
            let words = Words::parse(words, &["dev"], &["dad", "nodad"])?;
            let (interface, dad) = (words.value("dev").map(Into::into), words.has("dad"));
            let address = words.needed()?;
            if words.has("nodad") && dad {
                return Err(Failure::Usage("'dad' and 'nodad' contradict each other".into()));
            }
            // Of IPv4 it is so anyway.
            if words.has("nodad") && address.contains(':') {
                return Err(Failure::Usage(
                    "'nodad' is for IPv4: whether another station has an address of IPv6 is always looked for (RFC 4862, 5.4)"
                        .into(),
                ));
            }
            Request::AddAddress { address: address.into(), interface, dad, replace: verb == Verb::Replace }
        }
        Verb::Delete => {
            let words = Words::parse(words, &["dev"], &[])?;
            let interface = words.value("dev").map(Into::into);
            Request::RemoveAddress { address: words.needed()?.into(), interface }
        }
    };
    if let Request::AddAddress { address, .. } | Request::RemoveAddress { address, .. } = &request {
        args.family.check(address)?;
    }
    change(&args.show, &request)
}

fn select(args: &Args, verb: Verb, words: &Words<'_>) -> Result<bool, Failure> {
    // A bare word is an interface, as `ip addr show eth1` has it.
    if let (Some(_), Some(word)) = (words.value("dev"), words.bare()) {
        return Err(Failure::Usage(format!("'{word}' is not known: write dev, to")));
    }
    let interface = words.value("dev").or(words.bare()).map(Into::into);
    let to = words.value("to").map(prefix).transpose().map_err(Failure::Usage)?;
    let within = |row: &AddressRow| {
        let address = row.address.split('/').next().and_then(|ip| ip.parse::<std::net::IpAddr>().ok());
        to.is_none_or(|to| address.is_some_and(|ip| to.contains(Address::from(ip))))
    };
    let wanted = |row: &AddressRow| args.family.wants(&row.address) && within(row);
    let request = Request::Addresses { interface };
    if verb == Verb::Show {
        return show(&args.show, &request, wanted, line);
    }
    words.check_flush()?;
    let remove =
        |row: AddressRow| Request::RemoveAddress { address: row.address, interface: Some(row.interface) };
    flush(&args.show, &request, wanted, remove)
}

fn line(row: &AddressRow) -> Vec<String> {
    let lasts = |seconds: Option<u64>| seconds.map_or_else(|| "forever".into(), |left| format!("{left}sec"));
    let (valid, preferred) = (lasts(row.valid_life_time), lasts(row.preferred_life_time));
    vec![
        row.interface.clone(),
        row.address.clone(),
        if row.gone { format!("{} gone", row.state) } else { row.state.clone() },
        row.mac.clone().unwrap_or_default(),
        format!("mtu {}", row.mtu),
        if row.dynamic {
            format!("dynamic valid_lft {valid} preferred_lft {preferred}")
        } else {
            String::new()
        },
        claims(row),
    ]
}

/// Who else says that an address is theirs.
fn claims(row: &AddressRow) -> String {
    match (row.claims, &row.claimed_by) {
        (0, _) => String::new(),
        (count, None) => format!("claimed {count}"),
        (count, Some(mac)) => format!("claimed {count} by {mac}"),
    }
}
