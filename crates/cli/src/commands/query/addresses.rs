//! `bywash addr`.

use bywash_engine::request::{AddressRow, Request, prefix};
use bywash_engine::stack::Address;

use super::words::{Verb, Words};
use super::{Args, change, flush, show};
use crate::failure::Failure;

/// Shows or changes addresses.
pub(crate) fn addresses(args: &Args) -> Result<bool, Failure> {
    let (verb, words) = Verb::of(&args.words)?;
    let request = match verb {
        Verb::Show | Verb::Flush => return select(args, verb, &Words::parse(words, &["dev", "to"], &[])?),
        Verb::Get | Verb::Change => {
            return Err(Failure::Usage("for addresses write show, add, replace, del or flush".into()));
        }
        Verb::Add | Verb::Replace => {
            let words = Words::parse(words, &["dev"], &["dad"])?;
            let (interface, dad) = (words.value("dev").map(Into::into), words.has("dad"));
            Request::AddAddress {
                address: words.needed()?.into(),
                interface,
                dad,
                replace: verb == Verb::Replace,
            }
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
