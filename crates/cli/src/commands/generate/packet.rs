//! What the packets of `bywash generate` look like: options for each header, or a template.
//!
//! A plain value is the header's. Several values are a field's, over the first of them.

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::str::FromStr;

use bywash_apps::generate::{Field, FieldError, Frame, Network, Upper, bytes_of_hex, packet_of_file};

use crate::failure::Failure;

/// The headers.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Packet")]
pub(super) struct PacketArgs {
    /// What IP carries: udp, tcp, icmp (ICMPv6 over IPv6), or a protocol number without a header of its own
    #[arg(long, value_name = "PROTOCOL", default_value = "udp", value_parser = protocol)]
    proto: Upper,
    /// No IP: the payload itself, under this Ethernet type, as in 0x88b5
    #[arg(long, value_name = "TYPE", value_parser = ethertype, conflicts_with = "proto")]
    ethertype: Option<u16>,
    /// Ethernet destination [default: 02:00:00:00:00:02]
    #[arg(long, value_name = "MACS")]
    dst_mac: Option<String>,
    /// Ethernet source [default: the port's own]
    #[arg(long, value_name = "MACS")]
    src_mac: Option<String>,
    /// A VLAN tag; several times for several, the outer one first, which is then of 802.1ad (QinQ)
    #[arg(long, value_name = "IDS")]
    vlan: Vec<String>,
    /// An MPLS label; several times for several, the outer one first
    #[arg(long, value_name = "LABELS")]
    mpls: Vec<String>,
    /// Source address, IPv4 or IPv6; of many --sources the first one's [default: 192.168.0.1]
    #[arg(long, visible_alias = "src", value_name = "IPS")]
    src_ip: Option<String>,
    /// Destination address [default: 198.18.0.1]
    #[arg(long, visible_alias = "dst", value_name = "IPS")]
    dst_ip: Option<String>,
    /// Source port; of many --sources the first one's; ICMP's identifier [default: 10000]
    #[arg(long, visible_alias = "sport", value_name = "PORTS")]
    src_port: Option<String>,
    /// Destination port [default: 9]
    #[arg(long, visible_alias = "dport", value_name = "PORTS")]
    dst_port: Option<String>,
    /// IPv4's time to live, IPv6's hop limit [default: 64]
    #[arg(long, value_name = "HOPS")]
    ttl: Option<String>,
    /// IPv4's type of service, IPv6's traffic class: DSCP and ECN, 8 bits [default: 0]
    #[arg(long, value_name = "BYTES")]
    tos: Option<String>,
    /// TCP's flags: syn, syn+ack, or several values: syn,ack [default: ack]
    #[arg(long, value_name = "FLAGS")]
    flags: Option<String>,
    /// Send the first packet of a pcap or pcapng file, or its Nth by FILE#N, changed by the options above
    #[arg(long, value_name = "FILE", conflicts_with_all = ["proto", "ethertype", "hex"])]
    template: Option<String>,
    /// Send this packet (hex digits, from the Ethernet header on, without FCS), changed by the options above
    #[arg(long, value_name = "HEX", conflicts_with_all = ["proto", "ethertype"])]
    hex: Option<String>,
}

/// Collects what is not plain.
struct Fields(Vec<Field>);

impl Fields {
    fn add(&mut self, name: &str, values: &str, option: &str) -> Result<(), FieldError> {
        self.0.push(Field::new(name, values, option)?);
        Ok(())
    }

    /// Puts a plain value into the header, and makes several a field.
    fn set<T: FromStr>(
        &mut self,
        to: Option<&mut T>,
        (name, option): (&str, &str),
        values: Option<&str>,
    ) -> Result<(), FieldError> {
        let Some(values) = values else { return Ok(()) };
        match (to, values.trim().parse()) {
            (Some(to), Ok(value)) => *to = value,
            _ => self.add(name, values, option)?,
        }
        Ok(())
    }
}

impl PacketArgs {
    /// The packet that these options describe.
    pub(super) fn frame(&self) -> Result<Frame, Failure> {
        self.described().map_err(Failure::Usage)
    }

    fn described(&self) -> Result<Frame, String> {
        let mut frame = Frame { template: self.template()?, ..Frame::default() };
        let mut fields = Fields(Vec::new());
        self.describe(&mut frame, &mut fields).map_err(|error| error.to_string())?;
        frame.fields = fields.0;
        Ok(frame)
    }

    /// The file of `--template`, and which of its packets is meant.
    pub(super) fn template_file(&self) -> Option<(&Path, u64)> {
        let file = self.template.as_deref()?;
        let numbered = file.rsplit_once('#').and_then(|(file, number)| Some((file, number.parse().ok()?)));
        // A file's own name may have a # in it.
        let (file, number) = numbered.filter(|_| !Path::new(file).exists()).unwrap_or((file, 1));
        Some((Path::new(file), number))
    }

    fn template(&self) -> Result<Option<Vec<u8>>, String> {
        if let Some((file, number)) = self.template_file() {
            return packet_of_file(file, number).map(Some).map_err(|reason| format!("--template {reason}"));
        }
        let Some(hex) = &self.hex else { return Ok(None) };
        bytes_of_hex(hex)
            .map(Some)
            .ok_or_else(|| "--hex: write pairs of hex digits, as in 'ff ff 02 0a'".into())
    }

    fn describe(&self, frame: &mut Frame, fields: &mut Fields) -> Result<(), FieldError> {
        let is_built = frame.template.is_none();
        let has_ports = is_built && self.ethertype.is_none() && !matches!(self.proto, Upper::Other(_));
        let is_icmp = is_built && self.proto == Upper::Icmp;
        frame.network = self.ethertype.map_or(Network::Ip(self.proto), Network::Ethernet);
        let built = |is: bool| move |to| if is { Some(to) } else { None };

        fields.set(built(is_built)(&mut frame.dst_mac), ("eth.dst", "--dst-mac"), self.dst_mac.as_deref())?;
        let mut src_mac = frame.dst_mac;
        let before = fields.0.len();
        fields.set(is_built.then_some(&mut src_mac), ("eth.src", "--src-mac"), self.src_mac.as_deref())?;
        frame.src_mac = (is_built && self.src_mac.is_some() && fields.0.len() == before).then_some(src_mac);
        self.describe_tags(frame, fields)?;

        if is_built {
            let (src, dst) = (self.src_ip.as_deref(), self.dst_ip.as_deref());
            let [src, dst] = first_addresses([src, dst], [frame.src_ip, frame.dst_ip]);
            (frame.src_ip, frame.dst_ip) = (src, dst);
        }
        let has_ip = is_built && self.ethertype.is_none();
        fields.set(has_ip.then_some(&mut frame.src_ip), ("ip.src", "--src-ip"), self.src_ip.as_deref())?;
        fields.set(has_ip.then_some(&mut frame.dst_ip), ("ip.dst", "--dst-ip"), self.dst_ip.as_deref())?;
        let src_port = if is_icmp { "icmp.id" } else { "port.src" };
        fields.set(
            has_ports.then_some(&mut frame.src_port),
            (src_port, "--src-port"),
            self.src_port.as_deref(),
        )?;
        let dst_port = (has_ports && !is_icmp).then_some(&mut frame.dst_port);
        fields.set(dst_port, ("port.dst", "--dst-port"), self.dst_port.as_deref())?;
        fields.set(has_ip.then_some(&mut frame.ttl), ("ip.ttl", "--ttl"), self.ttl.as_deref())?;
        fields.set(has_ip.then_some(&mut frame.tos), ("ip.tos", "--tos"), self.tos.as_deref())?;
        if let Some(flags) = &self.flags {
            fields.add("tcp.flags", flags, "--flags")?;
        }
        Ok(())
    }

    fn describe_tags(&self, frame: &mut Frame, fields: &mut Fields) -> Result<(), FieldError> {
        let is_built = frame.template.is_none();
        for (n, values) in (1..).zip(&self.vlan) {
            if is_built {
                frame.vlans.push(0);
            }
            fields.add(&format!("vlan{n}.id"), values, "--vlan")?;
        }
        for (n, values) in (1..).zip(&self.mpls) {
            if is_built {
                frame.mpls.push(0);
            }
            fields.add(&format!("mpls{n}.label"), values, "--mpls")?;
        }
        Ok(())
    }
}

/// The first addresses of what was written, which say of which version the packet is. Of `any` and `random` they are of
/// the same version as the other one's.
fn first_addresses(written: [Option<&str>; 2], usual: [IpAddr; 2]) -> [IpAddr; 2] {
    // The network that RFC 5180 set aside for measurements.
    const USUAL_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1));
    let first = |text: &str| {
        let end =
            text.find(|c: char| !c.is_ascii_hexdigit() && !matches!(c, ':' | '.')).unwrap_or(text.len());
        text[..end].parse::<IpAddr>().ok()
    };
    let found = written.map(|text| text.and_then(|text| first(text.trim())));
    let is_v6 = found.iter().flatten().any(IpAddr::is_ipv6);
    [0, 1].map(|i| match (found[i], written[i]) {
        (Some(address), _) => address,
        (None, Some(_)) if is_v6 => USUAL_V6,
        _ => usual[i],
    })
}

fn protocol(text: &str) -> Result<Upper, String> {
    match text {
        "udp" => Ok(Upper::Udp),
        "tcp" => Ok(Upper::Tcp),
        "icmp" | "icmpv6" | "icmp6" => Ok(Upper::Icmp),
        _ => text
            .parse()
            .map(Upper::Other)
            .map_err(|_| "write udp, tcp, icmp, or a number from 0 to 255".into()),
    }
}

fn ethertype(text: &str) -> Result<u16, String> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |hex| (hex, 16));
    // No sign: `from_str_radix` would take one.
    let number = u16::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'));
    // Below lie the lengths of IEEE 802.3.
    number
        .filter(|number| *number >= 0x0600)
        .ok_or_else(|| "write a number from 0x0600 to 0xffff, as in 0x88b5".into())
}
