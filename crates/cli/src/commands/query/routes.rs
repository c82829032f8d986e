//! `bywash route`.

use bywash_engine::request::{Request, RouteRow, RouteWords, WayRow, prefix, protocols};
use bywash_engine::scoped::ScopedAddress;
use bywash_engine::stack::Prefix;

use super::words::{ALL, Verb, Words, one_of};
use super::{Args, answered, change, flush, show, understood};
use crate::failure::{self, Failure};

/// Shows or changes routes.
pub(crate) fn routes(args: &Args) -> Result<bool, Failure> {
    if args.words.first().is_some_and(|word| word.len() > 1 && "append".starts_with(word.as_str())) {
        let why = "'append' is not supported: of one prefix and metric there is one route; add one with another metric";
        return Err(Failure::Usage(why.into()));
    }
    let (verb, words) = Verb::of(&args.words, &ALL)?;
    if verb == Verb::Get {
        return way(args, &Words::parse(words, &["to", "dev", "oif", "from"], &[])?);
    }
    let words = Words::parse(words, &["to", "via", "dev", "src", "metric", "proto"], &[])?;
    let metric = words.value("metric").map(|text| {
        text.parse().map_err(|_| Failure::Usage(format!("'{text}' is no metric: write a number from 0")))
    });
    let metric = metric.transpose()?;
    let proto = one_of("proto", words.value("proto"), &protocols())?;
    if matches!(verb, Verb::Show | Verb::Flush) {
        let wanted = wanted(args, verb, &words, metric, proto)?;
        let request = Request::Routes { interface: words.value("dev").map(Into::into) };
        if verb == Verb::Show {
            return show(&args.show, &request, wanted, line);
        }
        words.check_flush()?;
        return flush(&args.show, &request, wanted, removal);
    }
    let object = words.needed()?;
    args.family.check(object)?;
    for address in [words.value("via"), words.value("src")].into_iter().flatten() {
        args.family.check(address)?;
    }
    let route = RouteWords {
        prefix: if object == "default" && args.family.is_v6() { "default6" } else { object }.into(),
        gateway: words.value("via").map(Into::into),
        interface: words.value("dev").map(Into::into),
        metric,
        protocol: proto.map(Into::into),
        source: words.value("src").map(Into::into),
    };
    let request = match verb {
        Verb::Replace => Request::ReplaceRoute(route),
        Verb::Change => Request::ChangeRoute(route),
        Verb::Delete => Request::RemoveRoute(route),
        _ => Request::AddRoute(route),
    };
    change(&args.show, &request)
}

/// Which routes are shown or flushed.
fn wanted(
    args: &Args,
    verb: Verb,
    words: &Words<'_>,
    metric: Option<u32>,
    proto: Option<&str>,
) -> Result<impl Fn(&RouteRow) -> bool, Failure> {
    let address = |word| words.value(word).map(ScopedAddress::of).transpose().map_err(Failure::Usage);
    let (via, src) = (address("via")?, address("src")?);
    let is_v6 = |address: &Option<ScopedAddress>| address.as_ref().is_some_and(|it| it.ip().is_ipv6());
    let by_v6 = args.family.is_v6() || is_v6(&via) || is_v6(&src);
    let to = words.object()?.map(|word| prefixes(word, verb, by_v6)).transpose()?;
    let (proto, family) = (proto.map(String::from), args.family);
    Ok(move |row: &RouteRow| {
        let is_default = if row.family == "inet6" { "::/0" } else { "0.0.0.0/0" };
        let row_prefix = if row.prefix == "default" { is_default } else { &row.prefix };
        family.wants(row_prefix)
            && to.as_ref().is_none_or(|to| prefix(row_prefix).is_ok_and(|prefix| to.contains(&prefix)))
            && via.as_ref().is_none_or(|via| names(row, row.gateway.as_ref(), via))
            && src.as_ref().is_none_or(|src| names(row, row.prefsrc.as_ref(), src))
            && proto.as_ref().is_none_or(|proto| row.protocol == *proto)
            && metric.is_none_or(|metric| row.metric == metric)
    })
}

/// Whether a route's router, or its source, is this one.
fn names(row: &RouteRow, address: Option<&String>, wanted: &ScopedAddress) -> bool {
    let address = address.and_then(|address| address.parse().ok());
    address == Some(wanted.ip()) && wanted.zone().is_none_or(|link| row.interface == link)
}

/// The prefixes that a word means. Who takes routes away means by `default` what it is to who adds one.
fn prefixes(word: &str, verb: Verb, by_v6: bool) -> Result<Vec<Prefix>, Failure> {
    let words = match word {
        "default" if verb == Verb::Flush => &[if by_v6 { "::/0" } else { "0.0.0.0/0" }][..],
        "default" => &["0.0.0.0/0", "::/0"][..],
        "default6" => &["::/0"],
        word => &[word],
    };
    let all = words.iter().map(|word| prefix(word).map(Prefix::network));
    all.collect::<Result<_, _>>().map_err(Failure::Usage)
}

/// What takes just this route away.
fn removal(row: RouteRow) -> Request {
    let is_default = row.prefix == "default" && row.family == "inet6";
    Request::RemoveRoute(RouteWords {
        prefix: if is_default { "default6".into() } else { row.prefix },
        gateway: row.gateway,
        interface: Some(row.interface),
        metric: Some(row.metric),
        protocol: Some(row.protocol),
        source: row.prefsrc,
    })
}

fn line(row: &RouteRow) -> Vec<String> {
    let expires = row.expires.map_or_else(String::new, |seconds| format!("expires {seconds}sec"));
    vec![
        row.prefix.clone(),
        row.gateway.as_ref().map_or_else(String::new, |gateway| format!("via {gateway}")),
        format!("dev {}", row.interface),
        format!("proto {}", row.protocol),
        row.prefsrc.as_ref().map_or_else(String::new, |source| format!("src {source}")),
        format!("metric {}", row.metric),
        expires,
    ]
}

/// `bywash route get`.
fn way(args: &Args, words: &Words<'_>) -> Result<bool, Failure> {
    let address = words.needed()?;
    args.family.check(address)?;
    if words.value("dev").is_some() && words.value("oif").is_some() {
        return Err(Failure::Usage("'dev' and 'oif' are the same: write one of them".into()));
    }
    let request = Request::Way {
        address: address.into(),
        interface: words.value("dev").or(words.value("oif")).map(Into::into),
        source: words.value("from").map(Into::into),
    };
    let value = answered(&args.show, &request)?;
    if args.show.json {
        failure::print(&format!("{value}\n"));
        return Ok(true);
    }
    let WayRow { kind, destination, gateway, interface, source } = understood(value)?;
    let kind = if kind == "unicast" { String::new() } else { format!("{kind} ") };
    let via = gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
    let source = source.map_or_else(String::new, |source| format!(" src {source}"));
    failure::print(&format!("{kind}{destination}{via} dev {interface}{source}\n"));
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_is_of_one_family_where_routes_are_taken_away() {
        for (word, verb, by_v6, expected) in [
            ("default", Verb::Show, false, &["0.0.0.0/0", "::/0"][..]),
            ("default", Verb::Flush, false, &["0.0.0.0/0"]),
            ("default", Verb::Flush, true, &["::/0"]),
            ("default6", Verb::Flush, false, &["::/0"]),
        ] {
            let expected: Vec<Prefix> = expected.iter().map(|word| prefix(word).unwrap().network()).collect();
            assert_eq!(prefixes(word, verb, by_v6).unwrap(), expected, "{word} {verb:?}");
        }
    }
}
