//! Registers of the 82576, as far as drivers touch them.
//!
//! Offsets as in Intel's published driver (`e1000_regs.h` of ethernet-linux-igb, commit afaa453; statistics and the bits of
//! semaphores and MDIC as in DPDK's copy of it, commit 1858060; the bits of
//! filters as in that copy and in DPDK's own `e1000_ethdev.h`, commit 38f72e5); queue registers by their
//! own addresses, with the second ones of the first four queues as aliases. Tests compare with other sources: offsets
//! and fields with `tests/igb.txt` (`registers.rs`), access with `tests/igb-values.txt` (`values.rs`). Reset values and writable
//! bits are not given: nothing uses them.

use crate::reg::{Access, Range, Register, registers};

registers! {
    // General
    CTRL "Device control" RW [0x00000]
        { FD 0, GIO_DIS 2, SLU 6, SPEED 9:8, FRCSPD 11, FRCDPLX 12, RST 26, RFCE 27, TFCE 28, VME 30, PHY_RST 31 };
    STATUS "Device status" RO [0x00008] { FD 0, LU 1, LAN_ID 3:2, SPEED 7:6, GIO_MASTER_EN 19 };
    EEC "EEPROM control" RW [0x00010] { SK 0, CS 1, DI 2, DO 3, REQ 6, GNT 7, PRES 8, AUTO_RD 9 };
    EERD "EEPROM read" RW [0x00014] { START 0, DONE 1, ADDR 15:2, DATA 31:16 };
    CTRL_EXT "Extended device control" RW [0x00018] { PFRSTD 14, RO_DIS 17, LINK_MODE 23:22, DRV_LOAD 28 };
    MDIC "PHY access" RW [0x00020] { DATA 15:0, REGADD 20:16, PHYADD 25:21, OP 27:26, READY 28, ERROR 30 };
    VET "VLAN EtherTypes" RW [0x00038];
    LEDCTL "LED control" RW [0x00e00];
    SWSM "Software semaphore" RW [0x05b50] { SMBI 0, SWESMBI 1 };
    FWSM "Firmware semaphore, for the firmware to write" RW [0x05b54] { FW_MODE 3:1, FW_VALID 15 };
    SW_FW_SYNC "Software and firmware synchronisation" RW [0x05b5c] { SW_EEP 0, SW_PHY0 1, SW_PHY1 2 };

    // Interrupts
    ICR "Legacy interrupt cause" W1C [0x000c0]
        { TXDW 0, LSC 2, RXDMT0 4, RXO 6, RXDW 7, VMMB 8, OMED 20, DRSTA 30, INTA 31 };
    ICS "Legacy interrupt cause set" WO [0x000c8];
    IMS "Legacy interrupt mask set" RW [0x000d0];
    IMC "Legacy interrupt mask clear" WO [0x000d8];
    IAM "Legacy interrupt auto mask" RW [0x000e0];
    GPIE "General purpose interrupt enable" RW [0x01514] { NSICR 0, MSIX_MODE 4, EIAME 30, PBA 31 };
    EICS "Interrupt cause set" WO [0x01520];
    EIMS "Interrupt mask set and read" RW [0x01524];
    EIMC "Interrupt mask clear" WO [0x01528];
    EIAC "Interrupt auto clear" RW [0x0152c];
    EIAM "Interrupt auto mask" RW [0x01530];
    EICR "Interrupt cause" W1C [0x01580];
    EITR "Interrupt throttle" RW [0x01680 + 4 * 25] { INTERVAL 14:2, CNT_WDIS 31 };
    IVAR "Interrupt vector allocation, queues n and n + 8" RW [0x01700 + 4 * 8]
        { RX_LOW 4:0, RX_LOW_VALID 7, TX_LOW 12:8, TX_LOW_VALID 15, RX_HIGH 20:16, RX_HIGH_VALID 23, TX_HIGH 28:24,
          TX_HIGH_VALID 31 };
    IVAR_MISC "Interrupt vector allocation, other causes" RW [0x01740]
        { TCP_TIMER 4:0, TCP_TIMER_VALID 7, OTHER 12:8, OTHER_VALID 15 };
    PBACL "MSI-X pending bits, clear" RW [0x05b68];

    // Receive
    RCTL "Receive control" RW [0x00100]
        { RXEN 1, SBP 2, UPE 3, MPE 4, LPE 5, LBM 7:6, MO 13:12, BAM 15, BSIZE 17:16, VFE 18, CFIEN 19, PMCF 23, SECRC 26 };
    FCTTV "Flow control transmit timer" RW [0x00170];
    FCRTL "Flow control receive threshold, low" RW [0x02160];
    FCRTH "Flow control receive threshold, high" RW [0x02168];
    RXPBS "Receive packet buffer size" RW [0x02404];
    QDE "Queue drop enable" RW [0x02408];
    RXCSUM "Receive checksum control" RW [0x05000] { IPOFL 8, TUOFL 9, CRCOFL 11, IPPCSE 12, PCSD 13 };
    RLPML "Longest packet received" RW [0x05004];
    RFCTL "Receive filter control" RW [0x05008];
    MTA "Multicast table" RW [0x05200 + 4 * 128];
    RAL "Receive address, low" RW [0x05400 + 8 * 16, 0x054e0 + 8 * 8];
    RAH "Receive address, high" RW [0x05404 + 8 * 16, 0x054e4 + 8 * 8] { POOLSEL 25:18, AV 31 };
    PSRTYPE "Packet split" RW [0x05480 + 4 * 8];
    SYNQF "SYN packet queue filter" RW [0x055fc];
    VFTA "VLAN filter table" RW [0x05600 + 4 * 128];
    MRQC "Multiple receive queues command" RW [0x05818]
        { MRQE 2:0, RSS_IPV4_TCP 16, RSS_IPV4 17, RSS_IPV6 20, RSS_IPV6_TCP 21, RSS_IPV4_UDP 22, RSS_IPV6_UDP 23 };
    SAQF "Source address queue filter" RW [0x05980 + 4 * 8];
    DAQF "Destination address queue filter" RW [0x059a0 + 4 * 8];
    SPQF "Source port queue filter" RW [0x059c0 + 4 * 8] { PORT 15:0 };
    FTQF "Five-tuple queue filter" RW [0x059e0 + 4 * 8]
        { PROTOCOL 7:0, QUEUE_ENABLE 8, POOL_MASK 15, RX_QUEUE 25:16, MASK_PROTOCOL 28, MASK_SOURCE 29,
          MASK_DESTINATION 30, MASK_SOURCE_PORT 31 };
    IMIR "Five-tuple filter's destination port and priority" RW [0x05a80 + 4 * 8]
        { PORT 15:0, PORT_BP 17, PRIORITY 31:29 };
    IMIREXT "Five-tuple filter's size and TCP flags" RW [0x05aa0 + 4 * 8] { SIZE_BP 12, FLAGS_BP 19 };
    RETA "Redirection table" RW [0x05c00 + 4 * 32];
    RSSRK "RSS random key" RW [0x05c80 + 4 * 10];
    ETQF "EtherType queue filter" RW [0x05cb0 + 4 * 8] { ETYPE 15:0, RX_QUEUE 18:16, FILTER_EN 26, QUEUE_EN 31 };
    UTA "Unicast table" WO [0x0a000 + 4 * 128];
    RDBAL "Receive ring address, low" RW [0x0c000 + 0x40 * 16] also [0x02800 + 0x100 * 4];
    RDBAH "Receive ring address, high" RW [0x0c004 + 0x40 * 16] also [0x02804 + 0x100 * 4];
    RDLEN "Receive ring length in bytes" RW [0x0c008 + 0x40 * 16] also [0x02808 + 0x100 * 4];
    SRRCTL "Split receive control" RW [0x0c00c + 0x40 * 16] also [0x0280c + 0x100 * 4]
        { BSIZEPACKET 6:0, BSIZEHEADER 13:8, DESCTYPE 27:25, DROP_EN 31 };
    RDH "Receive ring head" RO [0x0c010 + 0x40 * 16] also [0x02810 + 0x100 * 4];
    RXCTL "Receive cache access control" RW [0x0c014 + 0x40 * 16] also [0x02814 + 0x100 * 4];
    RDT "Receive ring tail" RW [0x0c018 + 0x40 * 16] also [0x02818 + 0x100 * 4];
    RXDCTL "Receive queue control" RW [0x0c028 + 0x40 * 16] also [0x02828 + 0x100 * 4]
        { PTHRESH 4:0, HTHRESH 12:8, WTHRESH 20:16, ENABLE 25, SWFLSH 26 };
    RQDPC "Packets dropped by a queue" RC [0x0c030 + 0x40 * 16] also [0x02830 + 0x100 * 4] { COUNT 11:0 };

    // Transmit
    TCTL "Transmit control" RW [0x00400] { EN 1, PSP 3, CT 11:4, COLD 21:12, RTLC 24 };
    TIPG "Gap between transmitted packets" RW [0x00410];
    TXPBS "Transmit packet buffer size" RW [0x03404];
    DTXSWC "Transmit switch control" RW [0x03500] { MAC_SPOOF 7:0, VLAN_SPOOF 15:8, LLE 23:16, LOOPBACK 31 };
    DTXCTL "Transmit DMA control" RW [0x03590];
    TDBAL "Transmit ring address, low" RW [0x0e000 + 0x40 * 16] also [0x03800 + 0x100 * 4];
    TDBAH "Transmit ring address, high" RW [0x0e004 + 0x40 * 16] also [0x03804 + 0x100 * 4];
    TDLEN "Transmit ring length in bytes" RW [0x0e008 + 0x40 * 16] also [0x03808 + 0x100 * 4];
    TDH "Transmit ring head" RO [0x0e010 + 0x40 * 16] also [0x03810 + 0x100 * 4];
    TXCTL "Transmit cache access control" RW [0x0e014 + 0x40 * 16] also [0x03814 + 0x100 * 4];
    TDT "Transmit ring tail" RW [0x0e018 + 0x40 * 16] also [0x03818 + 0x100 * 4];
    TXDCTL "Transmit queue control" RW [0x0e028 + 0x40 * 16] also [0x03828 + 0x100 * 4]
        { PTHRESH 4:0, HTHRESH 12:8, WTHRESH 20:16, ENABLE 25, SWFLSH 26 };
    TDWBAL "Transmit head write-back address, low" RW [0x0e038 + 0x40 * 16] also [0x03838 + 0x100 * 4]
        { HEAD_WB_EN 0 };
    TDWBAH "Transmit head write-back address, high" RW [0x0e03c + 0x40 * 16] also [0x0383c + 0x100 * 4];

    // Virtual functions and pools
    VMBMEM "Mailbox memory, sixteen words for each function" RW [0x00800 + 4 * 128];
    P2VMAILBOX "Mailbox, from PF to VF" RW [0x00c00 + 4 * 8] { STS 0, ACK 1, VFU 2, PFU 3, RVFU 4 };
    MBVFICR "Mailbox causes" W1C [0x00c80] { REQ 7:0, ACK 23:16 };
    MBVFIMR "Mailbox interrupt mask" RW [0x00c84];
    VFLRE "Virtual functions that were reset" W1C [0x00c88];
    VFRE "Pools that receive" RW [0x00c8c];
    VFTE "Pools that transmit" RW [0x00c90];
    VMVIR "VLAN tag a pool's packets get" RW [0x03700 + 4 * 8];
    VT_CTL "Virtualisation control" RW [0x0581c]
        { DEF_PL 9:7, IGNORE_MAC 28, DIS_DEF_POOL 29, RPL_EN 30 };
    VMOLR "What a pool accepts" RW [0x05ad0 + 4 * 8]
        { RLPML 13:0, LPE 16, RSSE 17, VPE 23, AUPE 24, ROMPE 25, ROPE 26, BAM 27, MPME 28, UPE 29, STRVLAN 30, STRCRC 31 };
    RPLOLR "Offloads of replicated packets" RW [0x05af0];
    VLVF "VLANs of pools" RW [0x05d00 + 4 * 32] { VLAN_ID 11:0, POOLSEL 19:12, LVLAN 20, VI_EN 31 };

    // Statistics
    CRCERRS "Frames with a wrong check sequence" RC [0x04000];
    ALGNERRC "Frames with an alignment error" RC [0x04004];
    SYMERRS "Symbol errors" RC [0x04008];
    RXERRC "Receive errors" RC [0x0400c];
    MPC "Missed packets" RC [0x04010];
    RLEC "Receive length errors" RC [0x04040];
    XONRXC "Pause frames received that end one" RC [0x04048];
    XONTXC "Pause frames sent that end one" RC [0x0404c];
    XOFFRXC "Pause frames received" RC [0x04050];
    XOFFTXC "Pause frames sent" RC [0x04054];
    PRC64 "Packets received of 64 bytes" RC [0x0405c];
    PRC127 "Packets received of 65 to 127 bytes" RC [0x04060];
    PRC255 "Packets received of 128 to 255 bytes" RC [0x04064];
    PRC511 "Packets received of 256 to 511 bytes" RC [0x04068];
    PRC1023 "Packets received of 512 to 1023 bytes" RC [0x0406c];
    PRC1522 "Packets received of 1024 bytes and more" RC [0x04070];
    GPRC "Good packets received" RC [0x04074];
    BPRC "Broadcast packets received" RC [0x04078];
    MPRC "Multicast packets received" RC [0x0407c];
    GPTC "Good packets transmitted" RC [0x04080];
    GORCL "Good bytes received, low" RC [0x04088];
    GORCH "Good bytes received, high" RC [0x0408c];
    GOTCL "Good bytes transmitted, low" RC [0x04090];
    GOTCH "Good bytes transmitted, high" RC [0x04094];
    RNBC "Packets without a buffer" RC [0x040a0];
    RUC "Undersized frames" RC [0x040a4];
    RFC "Fragments" RC [0x040a8];
    ROC "Oversized frames" RC [0x040ac];
    RJC "Jabber" RC [0x040b0];
    MGTPRC "Management packets received" RC [0x040b4];
    MGTPDC "Management packets dropped" RC [0x040b8];
    MGTPTC "Management packets transmitted" RC [0x040bc];
    TORL "All bytes received, low" RC [0x040c0];
    TORH "All bytes received, high" RC [0x040c4];
    TOTL "All bytes transmitted, low" RC [0x040c8];
    TOTH "All bytes transmitted, high" RC [0x040cc];
    TPR "All packets received" RC [0x040d0];
    TPT "All packets transmitted" RC [0x040d4];
    PTC64 "Packets transmitted of 64 bytes" RC [0x040d8];
    PTC127 "Packets transmitted of 65 to 127 bytes" RC [0x040dc];
    PTC255 "Packets transmitted of 128 to 255 bytes" RC [0x040e0];
    PTC511 "Packets transmitted of 256 to 511 bytes" RC [0x040e4];
    PTC1023 "Packets transmitted of 512 to 1023 bytes" RC [0x040e8];
    PTC1522 "Packets transmitted of 1024 bytes and more" RC [0x040ec];
    MPTC "Multicast packets transmitted" RC [0x040f0];
    BPTC "Broadcast packets transmitted" RC [0x040f4];
    TSCTC "Packets cut into segments" RC [0x040f8];
}

/// Registers that reading changes though they are neither counters nor causes: it takes the semaphore.
pub const TAKEN_BY_READING: &[&str] = &["SWSM"];
