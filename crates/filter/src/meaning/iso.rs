//! ISO protocols: ES-IS, IS-IS and its kinds of PDU.

use bywash_wire::EtherType;

use super::Wrong;
use super::link::{Link, SAP_ISO};
use crate::formula::Formula;
use crate::language::Layer;

/// The network layer protocol identifier of an ISO protocol.
pub(super) fn protocol(layer: Layer) -> Option<u32> {
    match layer {
        Layer::Clnp => Some(0x81),
        Layer::Esis => Some(0x82),
        Layer::Isis => Some(0x83),
        _ => None,
    }
}

/// Types of IS-IS PDUs (ISO 10589), in the order in which tcpdump asks for them.
const L1_IIH: u32 = 15;
const L2_IIH: u32 = 16;
const PTP_IIH: u32 = 17;
const L1_LSP: u32 = 18;
const L2_LSP: u32 = 20;
const L1_CSNP: u32 = 24;
const L2_CSNP: u32 = 25;
const L1_PSNP: u32 = 26;
const L2_PSNP: u32 = 27;

fn pdus(layer: Layer) -> &'static [u32] {
    match layer {
        Layer::IsisL1 => &[L1_PSNP, L1_CSNP, L1_LSP, L1_IIH, PTP_IIH],
        Layer::IsisL2 => &[L2_PSNP, L2_CSNP, L2_LSP, L2_IIH, PTP_IIH],
        Layer::IsisIih => &[PTP_IIH, L1_IIH, L2_IIH],
        Layer::IsisLsp => &[L1_LSP, L2_LSP],
        Layer::IsisSnp => &[L2_PSNP, L1_PSNP, L1_CSNP, L2_CSNP],
        Layer::IsisCsnp => &[L1_CSNP, L2_CSNP],
        Layer::IsisPsnp => &[L1_PSNP, L2_PSNP],
        _ => &[],
    }
}

impl Link {
    /// ISO packets of this protocol.
    pub(super) fn iso(&self, protocol: u32) -> Result<Formula, Wrong> {
        Ok(Formula::all([self.carries(EtherType(SAP_ISO))?, self.behind_llc(0).is(protocol)]))
    }

    /// IS-IS packets with this number in the place of the PDU type.
    pub(super) fn isis_pdu(&self, number: u32) -> Result<Formula, Wrong> {
        Ok(Formula::all([self.iso(0x83)?, self.behind_llc(4).is(number)]))
    }

    /// IS-IS packets of one of the kinds that have a keyword.
    pub(super) fn isis(&self, layer: Layer) -> Result<Formula, Wrong> {
        let kinds = pdus(layer).iter().map(|number| self.isis_pdu(*number));
        Ok(Formula::any(kinds.collect::<Result<Vec<_>, Wrong>>()?))
    }
}
