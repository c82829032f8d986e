//! Registers of the 82599, as far as drivers touch them.
//!
//! Offsets and fields as in Intel's shared code (`ixgbe_type.h` of ixy, commit 0e00605). Reset values and writable bits are
//! given where public drivers and models have them; where no writable bits are given it is not known which there are.
//!
//! Tests compare all of this with other sources: offsets and fields with `tests/ixgbe.txt` (`registers.rs`), access, writable
//! bits and reset values with `tests/ixgbe-values.txt` (`values.rs`). Each text names its sources, and the tests name what none
//! of them has. What was seen on hardware is what Linux's self-test and FreeBSD say there; we had none.

use crate::reg::{Access, Range, Register, registers};

registers! {
    // General
    CTRL "Device control" RW [0x00000] = 0 { GIO_DIS 2, LRST 3, RST 26 };
    STATUS "Device status" RO [0x00008] = 0x0008_0000 { LAN_ID 3:2, GIO 19 };
    CTRL_EXT "Extended device control" RW [0x00018] = 0 { PFRSTD 14, NS_DIS 16, RO_DIS 17, DRV_LOAD 28 };
    ESDP "Software definable pins" RW [0x00020] = 0x0000_0004 { SDP0 0, SDP1 1, SDP2 2, SDP3 3, SDP5 5, SDP7 7 };
    I2CCTL "I2C pins of the SFP cage" RW [0x00028] = 0x0000_000f { CLK_IN 0, CLK_OUT 1, DATA_IN 2, DATA_OUT 3 };
    TCPTIMER "TCP timer" RW [0x0004c] = 0;
    LEDCTL "LED control" RW [0x00200];
    EEC "EEPROM and flash control" RW [0x10010] & 0x0000_0077
        { SK 0, CS 1, DI 2, DO 3, FWE 5:4, REQ 6, GNT 7, PRES 8, ARD 9, ADDR_SIZE 10, SIZE 14:11 };
    EERD "EEPROM read" RW [0x10014] = 0 { START 0, DONE 1, ADDR 15:2, DATA 31:16 };
    FLA "Flash access" RW [0x1001c] = 0;
    SWSM "Software semaphore" RW [0x10140] = 0 { SMBI 0, SWESMBI 1 };
    FWSM "Firmware semaphore" RO [0x10148] = 0x0000_8040 { FW_MODE 3:1, FW_VALID 15, EXT_ERR_IND 24:19 };
    FACTPS "Function active and power state" RO [0x10150] = 0x0000_0004 { MNGCG 29, LFS 30 };
    SW_FW_SYNC "Software and firmware synchronisation" RW [0x10160] = 0
        { SW_EEP 0, SW_PHY0 1, SW_PHY1 2, SW_MAC_CSR 3, SW_FLASH 4, FW_EEP 5, FW_PHY0 6, FW_PHY1 7, FW_MAC_CSR 8, REGSMP 31 };
    GRC "General receive control" RW [0x10200] = 0 { MNG 0, APME 1 };
    GCR "PCIe control" RW [0x11000] = 0 { CMPL_TMOUT 15:12, CMPL_TMOUT_RESEND 16, CAP_VER2 18 };
    GCR_EXT "PCIe control, extended" RW [0x11050] = 0 { VT_MODE 1:0, BUFFERS_CLEAR 30, MSIX_EN 31 };
    PBACL "MSI-X pending bits, clear" RW [0x11068, 0x110c4 + 4 * 1] = 0;
    DCA_ID "Direct cache access requester id" RO [0x11070] = 0;
    DCA_CTRL "Direct cache access control" RW [0x11074] = 0 { DCA_DIS 0 };
    CORECTL "Core analog configuration" RW [0x14f00];
    HICR "Host interface control" RW [0x15f00] = 0 { EN 0, C 1, SV 2 };
    FWSTS "Firmware status" RW [0x15f0c] = 0;

    // Interrupts
    EICR "Interrupt cause" W1C [0x00800] = 0
        { RTX_QUEUE 15:0, FLOW_DIR 16, RX_MISS 17, PCI 18, MAILBOX 19, LSC 20, LINKSEC 21, MNG 22, TS 23, GPI_SDP0 24,
          GPI_SDP1 25, GPI_SDP2 26, ECC 28, TCP_TIMER 30, OTHER 31 };
    EICS "Interrupt cause set, and read without clearing" RW [0x00808] & 0x7fff_ffff;
    EIAC "Interrupt auto clear" RW [0x00810] = 0 & 0x4000_ffff;
    EITR "Interrupt throttle" RW [0x00820 + 4 * 24, 0x12300 + 4 * 105] = 0 & 0x8fff_8ff8
        { INTERVAL 11:3, LLI_MODERATION 15, CNT_WDIS 31 };
    EIMS "Interrupt mask set and read" RW [0x00880] = 0 & 0x7fff_ffff;
    EIMC "Interrupt mask clear" WO [0x00888] & 0x7fff_ffff;
    EIAM "Interrupt auto mask" RW [0x00890] = 0 & 0x7fff_ffff;
    EITRSEL "Interrupt throttle, which of the functions" RW [0x00894] = 0;
    GPIE "General purpose interrupt enable" RW [0x00898] = 0
        { SDP0_GPIEN 0, SDP1_GPIEN 1, SDP2_GPIEN 2, MSIX_MODE 4, OCD 5, EIMEN 6, RSC_DELAY 13:11, VTMODE 15:14, EIAME 30, PBA_SUPPORT 31 };
    IVAR "Interrupt vector allocation, two queues" RW [0x00900 + 4 * 64] & 0xbfbf_bfbf
        { RX_EVEN 5:0, RX_EVEN_VALID 7, TX_EVEN 13:8, TX_EVEN_VALID 15, RX_ODD 21:16, RX_ODD_VALID 23, TX_ODD 29:24,
          TX_ODD_VALID 31 };
    IVAR_MISC "Interrupt vector allocation, other causes" RW [0x00a00] & 0x0000_ffff
        { TCP_TIMER 6:0, TCP_TIMER_VALID 7, OTHER 14:8, OTHER_VALID 15 };
    EICS_EX "Interrupt cause set, extended" WO [0x00a90 + 4 * 2];
    EIMS_EX "Interrupt mask set and read, extended" RW [0x00aa0 + 4 * 2] = 0;
    EIMC_EX "Interrupt mask clear, extended" WO [0x00ab0 + 4 * 2];
    EIAM_EX "Interrupt auto mask, extended" RW [0x00ad0 + 4 * 2] = 0;

    // Receive queues
    RDBAL "Receive ring address, low" RW [0x01000 + 0x40 * 64, 0x0d000 + 0x40 * 64] & 0xffff_ff80;
    RDBAH "Receive ring address, high" RW [0x01004 + 0x40 * 64, 0x0d004 + 0x40 * 64];
    RDLEN "Receive ring length in bytes" RW [0x01008 + 0x40 * 64, 0x0d008 + 0x40 * 64] = 0 & 0x000f_ff80;
    DCA_RXCTRL "Receive cache access control" RW [0x0100c + 0x40 * 64, 0x0d00c + 0x40 * 64]
        also [0x02200 + 4 * 16] = 0x0000_b200
        { DESC_DCA_EN 5, HEAD_DCA_EN 6, DATA_DCA_EN 7, DESC_RRO_EN 9, RESERVED_12 12, DATA_WRO_EN 13, HEAD_WRO_EN 15,
          CPUID 31:24 };
    RDH "Receive ring head" RO [0x01010 + 0x40 * 64, 0x0d010 + 0x40 * 64] = 0;
    SRRCTL "Split receive control" RW [0x01014 + 0x40 * 64, 0x0d014 + 0x40 * 64]
        also [0x02100 + 4 * 16] = 0x0000_0402
        { BSIZEPACKET 4:0, BSIZEHEADER 13:8, RDMTS 24:22, DESCTYPE 27:25, DROP_EN 28 };
    RDT "Receive ring tail" RW [0x01018 + 0x40 * 64, 0x0d018 + 0x40 * 64] = 0 & 0x0000_ffff;
    RXDCTL "Receive queue control" RW [0x01028 + 0x40 * 64, 0x0d028 + 0x40 * 64] = 0
        { RLPML 13:0, RLPML_EN 15, ENABLE 25, SWFLSH 26, VME 30 };
    RSCCTL "Receive side coalescing control" RW [0x0102c + 0x40 * 64, 0x0d02c + 0x40 * 64] = 0
        { RSCEN 0, MAXDESC 3:2 };
    PSRTYPE "Packet split and RSS queues of a pool" RW [0x0ea00 + 4 * 64] also [0x05480 + 4 * 16]
        { TCPHDR 4, UDPHDR 5, IPV4HDR 8, IPV6HDR 9, L2HDR 12, RQPL 31:29 };

    // Receive, as a whole
    RDRXCTL "Receive DMA control" RW [0x02f00] = 0x0010_8808 & 0x37ff_fff7
        { CRCSTRIP 1, DMAIDONE 3, AGGDIS 16, RSCFRSTSIZE 21:17, RSCLLIDIS 23, RSCACKC 25, FCOE_WRFIX 26, MBINTEN 28,
          MDP_EN 29 };
    PFQDE "Queue drop enable" RW [0x02f04] = 0 { QDE 0, QUEUE_IDX 14:8, WE 16, RE 17 };
    RXDSTATCTRL "Receive DMA statistics control" RW [0x02f40] = 0;
    RXCTRL "Receive control" RW [0x03000] = 0 & 0x0000_0001 { RXEN 0 };
    PFCTOP "Priority flow control opcode" RW [0x03008];
    RTRUP2TC "Receive user priority to traffic class" RW [0x03020] = 0;
    RSCDBU "Receive side coalescing data buffer control" RW [0x03028] = 0 { RSCSMALDIS 6:0, RSCACKDIS 7 };
    RXPBSIZE "Receive packet buffer size" RW [0x03c00 + 4 * 8] & 0x000f_fc00 { SIZE 19:10 };
    RTRPCS "Receive packet plane control" RW [0x02430] = 0 { RRM 1, RAC 2 };
    RTRPT4C "Receive packet plane T4 configuration" RW [0x02140 + 4 * 8] = 0;
    RQSMR "Receive queue statistics mapping" RW [0x02300 + 4 * 32] = 0;
    RXCSUM "Receive checksum control" RW [0x05000] = 0 { IPPCSE 12, PCSD 13 };
    RFCTL "Receive filter control" RW [0x05008] = 0
        { ISCSI_DIS 0, RSC_DIS 5, NFSW_DIS 6, NFSR_DIS 7, IPV6_DIS 10, IPFRSP_DIS 14, IPV6_EX_DIS 16 };
    FCTRL "Filter control" RW [0x05080] = 0 { SBP 1, MPE 8, UPE 9, BAM 10 };
    VLNCTRL "VLAN control" RW [0x05088] = 0x0000_8100 { VET 15:0, CFI 28, CFIEN 29, VFE 30 };
    MCSTCTRL "Multicast control" RW [0x05090] = 0 & 0x0000_0007 { MO 1:0, MFE 2 };
    RXMTRL "Time stamp filter for received messages" RW [0x05120];
    ETQF "EtherType queue filter" RW [0x05128 + 4 * 8] = 0
        { ETYPE 15:0, UP 18:16, UP_EN 19, POOL 25:20, POOL_EN 26, FCOE 27, TIMESTAMP 30, FILTER_EN 31 };
    ETQS "EtherType queue select" RW [0x0ec00 + 4 * 8] = 0 { RX_QUEUE 22:16, LLI 29, QUEUE_EN 31 };
    SAQF "Source address queue filter" RW [0x0e000 + 4 * 128];
    DAQF "Destination address queue filter" RW [0x0e200 + 4 * 128];
    SDPQF "Source and destination port queue filter" RW [0x0e400 + 4 * 128] { SOURCE 15:0, DESTINATION 31:16 };
    FTQF "Five-tuple queue filter" RW [0x0e600 + 4 * 128]
        { PROTOCOL 1:0, PRIORITY 4:2, POOL 13:8, MASK_SOURCE 25, MASK_DESTINATION 26, MASK_SOURCE_PORT 27,
          MASK_DESTINATION_PORT 28, MASK_PROTOCOL 29, POOL_MASK 30, QUEUE_ENABLE 31 };
    L34TIMIR "Five-tuple filter's queue and interrupt" RW [0x0e800 + 4 * 128]
        { SIZE_BP 12, CTRL 18:13, CTRL_BP 19, LLI 20, RX_QUEUE 27:21 };
    SYNQF "SYN packet queue filter" RW [0x0ec30] = 0 { QUEUE_ENABLE 0, RX_QUEUE 7:1, SYNQFP 31 };
    RQTC "RSS queues per traffic class" RW [0x0ec70] = 0;
    MTA "Multicast table" RW [0x05200 + 4 * 128];
    RAL "Receive address, low" RW [0x0a200 + 8 * 128] also [0x05400 + 8 * 16];
    RAH "Receive address, high" RW [0x0a204 + 8 * 128] also [0x05404 + 8 * 16] & 0x8000_ffff { AV 31 };
    MPSAR "Pools of a receive address" RW [0x0a600 + 4 * 256];
    VFTA "VLAN filter table" RW [0x0a000 + 4 * 128];
    MRQC "Multiple receive queues command" RW [0x05818] also [0x0ec80] = 0
        { MRQE 3:0, RSS_IPV4_TCP 16, RSS_IPV4 17, RSS_IPV6 20, RSS_IPV6_TCP 21, RSS_IPV4_UDP 22, RSS_IPV6_UDP 23 };
    RETA "Redirection table" RW [0x05c00 + 4 * 32] also [0x0eb00 + 4 * 32] & 0x0f0f_0f0f;
    RSSRK "RSS random key" RW [0x05c80 + 4 * 10] also [0x0eb80 + 4 * 10];
    SECRXCTRL "Security receive control" RW [0x08d00] = 0x0000_0001 { SECRX_DIS 0, RX_DIS 1 };
    SECRXSTAT "Security receive status" RO [0x08d04] = 0x0000_0001 { SECRX_RDY 0, ECC_RXERR 2 };

    // Flow control
    FCTTV "Flow control transmit timer" RW [0x03200 + 4 * 4] = 0;
    FCRTL "Flow control receive threshold, low" RW [0x03220 + 4 * 8] & 0x8007_fff0 { XONE 31 };
    FCRTH "Flow control receive threshold, high" RW [0x03260 + 4 * 8] & 0x8007_fff0 { RTH 18:5, FCEN 31 };
    FCRTV "Flow control refresh threshold" RW [0x032a0] = 0;
    FCCFG "Flow control configuration" RW [0x03d00] = 0 { TFCE 4:3 };
    MFLCN "MAC flow control" RW [0x04294] = 0 { PMCF 0, DPF 1, RPFCM 2, RFCE 3 };

    // Transmit queues
    TDBAL "Transmit ring address, low" RW [0x06000 + 0x40 * 128] & 0xffff_ff80;
    TDBAH "Transmit ring address, high" RW [0x06004 + 0x40 * 128];
    TDLEN "Transmit ring length in bytes" RW [0x06008 + 0x40 * 128] = 0 & 0x000f_ff80;
    DCA_TXCTRL "Transmit cache access control" RW [0x0600c + 0x40 * 128] = 0x0000_2a00
        { DESC_DCA_EN 5, DESC_RRO_EN 9, DESC_WRO_EN 11, DATA_RRO_EN 13, CPUID 31:24 };
    TDH "Transmit ring head" RW [0x06010 + 0x40 * 128] = 0 & 0x0000_ffff;
    TDT "Transmit ring tail" RW [0x06018 + 0x40 * 128] = 0 & 0x0000_ffff;
    TXDCTL "Transmit queue control" RW [0x06028 + 0x40 * 128] = 0
        { PTHRESH 6:0, HTHRESH 14:8, WTHRESH 22:16, ENABLE 25, SWFLSH 26 };
    TDWBAL "Transmit head write-back address, low" RW [0x06038 + 0x40 * 128] = 0 { HEAD_WB_EN 0 };
    TDWBAH "Transmit head write-back address, high" RW [0x0603c + 0x40 * 128] = 0;

    // Transmit, as a whole
    RTTDCS "Transmit descriptor plane control" RW [0x04900] = 0x00c0_0000 { TDPAC 0, VMPAC 1, ARBDIS 6 };
    RTTDQSEL "Transmit descriptor plane queue select" RW [0x04904] = 0 { TXDQ_IDX 6:0 };
    RTTDT1C "Transmit descriptor plane T1 configuration" RW [0x04908] = 0;
    RTTDT2C "Transmit descriptor plane T2 configuration" RW [0x04910 + 4 * 8] = 0;
    TXPBTHRESH "Transmit packet buffer threshold" RW [0x04950 + 4 * 8] { THRESH 9:0 };
    RTTBCNRC "Transmit rate scheduler" RW [0x04984] = 0 { RF_DEC 13:0, RF_INT 23:14, RS_ENA 31 };
    DMATXCTL "Transmit DMA control" RW [0x04a80] = 0x8100_0004 { TE 0, GDV 3, VT 31:16 };
    DTXTCPFLGL "TCP flags of first and middle segments" RW [0x04a88] = 0x0ff6_0ff6 { FIRST 11:0, MIDDLE 27:16 };
    DTXTCPFLGH "TCP flags of the last segment" RW [0x04a8c] = 0x0000_0f7f { LAST 11:0 };
    DTXMXSZRQ "Transmit DMA outstanding requests" RW [0x08100] = 0x0000_0010 { MAX_BYTES 11:0 };
    MTQC "Multiple transmit queues command" RW [0x08120] = 0 { RT_ENA 0, VT_ENA 1, NUM_TC_OR_Q 3:2 };
    TXPBSIZE "Transmit packet buffer size" RW [0x0cc00 + 4 * 8] & 0x000f_fc00;
    RTTUP2TC "Transmit user priority to traffic class" RW [0x0c800] = 0;
    RTTPCS "Transmit packet plane control" RW [0x0cd00] { TPPAC 5, TPRM 8, ARBD 31:22 };
    RTTPT2C "Transmit packet plane T2 configuration" RW [0x0cd20 + 4 * 8] = 0;
    TIPG "Gap between transmitted packets" RW [0x0cb00];
    TQSM "Transmit queue statistics mapping" RW [0x08600 + 4 * 32] = 0;
    SECTXCTRL "Security transmit control" RW [0x08800] = 0x0000_0001 { SECTX_DIS 0, TX_DIS 1, STORE_FORWARD 2 };
    SECTXSTAT "Security transmit status" RO [0x08804] = 0x0000_0001 { SECTX_RDY 0, ECC_TXERR 2 };
    SECTXBUFFAF "Security transmit buffer almost full" RW [0x08808] = 0x0000_0250;
    SECTXMINIFG "Security transmit minimum gap" RW [0x08810] = 0x0000_1001;

    // Link
    PCS1GLCTL "1 Gb/s link control" RW [0x04208] = 0x0204_0000;
    PCS1GANA "1 Gb/s auto-negotiation advertisement" RW [0x04218] = 0x0000_01a0;
    HLREG0 "MAC core control" RW [0x04240] = 0x0801_2c0b
        { TXCRCEN 0, RXCRCSTRP 1, JUMBOEN 2, TXPADEN 10, LPBK 15, MDCSPD 16, CONTMDC 17, PREPEND 23:20, RXLNGTHERREN 27,
          RXPADSTRIPEN 28 };
    MSCA "Command to a PHY by MDIO" RW [0x0425c] = 0
        { MDIADD 15:0, DEVADD 20:16, PHYADD 25:21, OPCODE 27:26, STCODE 29:28, MDICMD 30, MDIINPROGEN 31 };
    MSRWD "Data to and from a PHY by MDIO" RW [0x04260] = 0 { MDIWRDATA 15:0, MDIRDDATA 31:16 };
    MAXFRS "Largest frame" RW [0x04268] = 0x05ee_0000 & 0xffff_0000 { MFS 31:16 };
    AUTOC "Auto-negotiation control" RW [0x042a0] = 0xc19d_8284
        { FLU 0, PMA_10G 8:7, PMA_1G 9, RESTART_AN 12, LMS 15:13, KR_SUPP 16, FECR 17, FECA 18,
          PAUSE 29:28, KX_SUPP 30, KX4_SUPP 31 };
    LINKS "Link status" RO [0x042a4] { SIGNAL 11:8, SPEED 29:28, UP 30, KX_AN_COMP 31 };
    AUTOC2 "Auto-negotiation control 2" RW [0x042a8] = 0 { SERIAL_10G 17:16, LINK_DISABLE 30:28 };
    ANLP1 "Auto-negotiation link partner" RO [0x042b0] { AN_STATE 19:16 };
    MMNGC "MAC manageability control" RO [0x042d0] = 0 { MNG_VETO 0 };
    LINKS2 "Link status 2" RO [0x04324];
    MACC "MAC control, of an X540" RW [0x04330] { FLU 0, FSV 17:16, FS 18 };

    // Flow director
    FDIRCTRL "Flow director control" RW [0x0ee00] = 0 & 0xff1f_7fb3
        { PBALLOC 1:0, INIT_DONE 3, PERFECT_MATCH 4, REPORT_STATUS 5, REPORT_STATUS_ALWAYS 7, DROP_QUEUE 14:8,
          FLEX_OFFSET 20:16, MAX_LENGTH 27:24, FULL_THRESH 31:28 };
    FDIRSIPV6 "Flow director source IPv6 address" RW [0x0ee0c + 4 * 3];
    FDIRIPSA "Flow director source IPv4 address" RW [0x0ee18];
    FDIRIPDA "Flow director destination IPv4 address" RW [0x0ee1c];
    FDIRPORT "Flow director ports" RW [0x0ee20] { SOURCE 15:0, DESTINATION 31:16 };
    FDIRVLAN "Flow director VLAN and flexible bytes" RW [0x0ee24] { VLAN 15:0, FLEX 31:16 };
    FDIRHASH "Flow director hash and index" RW [0x0ee28] { HASH 14:0, BUCKET_VALID 15, INDEX 30:16 };
    FDIRCMD "Flow director command" RW [0x0ee2c] = 0
        { CMD 1:0, FILTER_VALID 2, FILTER_UPDATE 3, IPV6DMATCH 4, L4TYPE 6:5, IPV6 7, CLEARHT 8, DROP 9, INT 10, LAST 11,
          COLLISION 12, QUEUE_EN 15, RX_QUEUE 22:16, POOL 29:24 };
    FDIRFREE "Flow director free filters" RO [0x0ee38] { FREE 15:0, COLL 30:16 };
    FDIRDIP4M "Flow director destination address mask" RW [0x0ee3c] = 0;
    FDIRSIP4M "Flow director source address mask" RW [0x0ee40] = 0;
    FDIRTCPM "Flow director TCP port mask" RW [0x0ee44] = 0 { SOURCE 15:0, DESTINATION 31:16 };
    FDIRUDPM "Flow director UDP port mask" RW [0x0ee48] = 0 { SOURCE 15:0, DESTINATION 31:16 };
    FDIRLEN "Flow director longest list" RC [0x0ee4c] = 0 { MAXLEN 5:0, MAXHASH 30:16 };
    FDIRUSTAT "Flow director filters added and removed" RC [0x0ee50] = 0 { ADD 15:0, REMOVE 31:16 };
    FDIRFSTAT "Flow director failed adds and removes" RC [0x0ee54] = 0 { FADD 7:0, FREMOVE 15:8 };
    FDIRMATCH "Flow director matches" RC [0x0ee58] = 0;
    FDIRMISS "Flow director misses" RC [0x0ee5c] = 0;
    FDIRHKEY "Flow director bucket hash key" RW [0x0ee68];
    FDIRSKEY "Flow director signature hash key" RW [0x0ee6c];
    FDIRM "Flow director other masks" RW [0x0ee70] = 0 & 0x0000_003f
        { VLANID 0, VLANP 1, POOL 2, L4P 3, FLEX 4, DIPV6 5 };
    FDIRIP6M "Flow director IPv6 masks" RW [0x0ee74] = 0;

    // Virtual functions and pools
    PFVTCTL "Virtualisation control" RW [0x051b0] = 0 { VT_ENA 0, DEF_PL 12:7, DIS_DEF_POOL 29, RPL_EN 30 };
    PFVMTXSW "Pools that loop their own packets back" RW [0x05180 + 4 * 2] = 0;
    PFVFRE "Pools that receive" RW [0x051e0 + 4 * 2] = 0;
    PFVFTE "Pools that transmit" RW [0x08110 + 4 * 2] = 0;
    PFVMVIR "VLAN tag a pool's packets get" RW [0x08000 + 4 * 64] = 0;
    PFVFSPOOF "Anti-spoof filters of pools" RW [0x08200 + 4 * 8] = 0;
    PFDTXGSWC "Transmit switch control" RW [0x08220] = 0 { LBE 0 };
    PFVMECM "Pools' receive error mask" RW [0x08790 + 4 * 2] = 0;
    PFMRCTL "Mirror rule control" RW [0x0f600 + 4 * 4] = 0;
    PFMRVLAN "Mirror rule VLANs" RW [0x0f610 + 4 * 8] = 0;
    PFMRVM "Mirror rule pools" RW [0x0f630 + 4 * 8] = 0;
    PFVML2FLT "What a pool accepts" RW [0x0f000 + 4 * 64] { UPE 22, VPE 23, AUPE 24, ROMPE 25, ROPE 26, BAM 27, MPE 28 };
    PFVLVF "VLANs of pools" RW [0x0f100 + 4 * 64] { VLAN_ID 11:0, VI_EN 31 };
    PFVLVFB "Pools of VLANs" RW [0x0f200 + 4 * 128];
    PFUTA "Unicast table" RW [0x0f400 + 4 * 128];

    // Time and wake-up
    TSYNCRXCTL "Receive time stamp control" RW [0x05188] = 0;
    RXSTMPH "Receive time stamp, high" RO [0x051a4];
    TSYNCTXCTL "Transmit time stamp control" RW [0x08c00] = 0;
    TXSTMPH "Transmit time stamp, high" RO [0x08c08];
    SYSTIML "System time, low" RW [0x08c0c];
    SYSTIMH "System time, high" RW [0x08c10];
    TIMINCA "Time increment" RW [0x08c14];
    WUC "Wake-up control" RW [0x05800];
    WUFC "Wake-up filter control" RW [0x05808];
    WUS "Wake-up status" W1C [0x05810];
    MANC "Management control" RW [0x05820] = 0;

    // Security associations
    IPSTXIDX "Security transmit table index" RW [0x08900];
    IPSTXSALT "Security transmit salt" RW [0x08904];
    IPSTXKEY "Security transmit key" RW [0x08908 + 4 * 4];
    IPSRXIDX "Security receive table index" RW [0x08e00];
    IPSRXIPADDR "Security receive address" RW [0x08e04 + 4 * 4];
    IPSRXSPI "Security receive parameter index" RW [0x08e14];
    IPSRXIPIDX "Security receive address index" RW [0x08e18];
    IPSRXKEY "Security receive key" RW [0x08e1c + 4 * 4];
    IPSRXSALT "Security receive salt" RW [0x08e2c];
    IPSRXMOD "Security receive mode" RW [0x08e30];
    LSECTXCNT "Link security transmit counters" RC [0x08a3c + 4 * 5] = 0;
    LSECRXCNT "Link security receive counters" RC [0x08f40 + 4 * 17] = 0;

    // Statistics
    FCOERPDC "FCoE packets dropped" RC [0x0241c] = 0;
    FCLAST "FCoE last errors" RC [0x02424] = 0;
    FCOEPRC "FCoE packets received" RC [0x02428] = 0;
    FCOEDWRC "FCoE words received" RC [0x0242c] = 0;
    FCOEPTC "FCoE packets transmitted" RC [0x08784] = 0;
    FCOEDWTC "FCoE words transmitted" RC [0x08788] = 0;
    RXDGPC "Packets given to the host" RC [0x02f50] = 0;
    RXDGBCL "Bytes given to the host, low" RC [0x02f54] = 0;
    RXDGBCH "Bytes given to the host, high" RC [0x02f58] = 0;
    PXON2OFFCNT "Priority XON to XOFF changes" RC [0x03240 + 4 * 8] = 0;
    PXONTXC "Priority XON transmitted" RC [0x03f00 + 4 * 8] = 0;
    PXOFFTXC "Priority XOFF transmitted" RC [0x03f20 + 4 * 8] = 0;
    LXONTXC "XON transmitted" RC [0x03f60] = 0;
    LXOFFTXC "XOFF transmitted" RC [0x03f68] = 0;
    MPC "Missed packets, by packet buffer" RC [0x03fa0 + 4 * 8] = 0;
    CRCERRS "Frames with a wrong check sequence" RC [0x04000] = 0;
    ILLERRC "Illegal bytes" RC [0x04004] = 0;
    ERRBC "Frames with error bytes" RC [0x04008] = 0;
    MSPDC "Short frames discarded by the MAC" RC [0x04010] = 0;
    MLFC "Local faults" RC [0x04034] = 0;
    MRFC "Remote faults" RC [0x04038] = 0;
    RLEC "Receive length errors" RC [0x04040] = 0;
    PRC64 "Frames of 64 bytes received" RC [0x0405c] = 0;
    PRC127 "Frames of 65 to 127 bytes received" RC [0x04060] = 0;
    PRC255 "Frames of 128 to 255 bytes received" RC [0x04064] = 0;
    PRC511 "Frames of 256 to 511 bytes received" RC [0x04068] = 0;
    PRC1023 "Frames of 512 to 1023 bytes received" RC [0x0406c] = 0;
    PRC1522 "Frames of 1024 bytes and more received" RC [0x04070] = 0;
    GPRC "Good packets received" RC [0x04074] = 0;
    BPRC "Broadcast packets received" RC [0x04078] = 0;
    MPRC "Multicast packets received" RC [0x0407c] = 0;
    GPTC "Good packets transmitted" RC [0x04080] = 0;
    GORCL "Good bytes received, low" RC [0x04088] = 0;
    GORCH "Good bytes received, high" RC [0x0408c] = 0;
    GOTCL "Good bytes transmitted, low" RC [0x04090] = 0;
    GOTCH "Good bytes transmitted, high" RC [0x04094] = 0;
    RUC "Undersized frames" RC [0x040a4] = 0;
    RFC "Fragments" RC [0x040a8] = 0;
    ROC "Oversized frames" RC [0x040ac] = 0;
    RJC "Jabber" RC [0x040b0] = 0;
    MNGPRC "Management packets received" RC [0x040b4] = 0;
    MNGPDC "Management packets dropped" RC [0x040b8] = 0;
    MNGPTC "Management packets transmitted" RC [0x0cf90] = 0;
    TORL "All bytes received, low" RC [0x040c0] = 0;
    TORH "All bytes received, high" RC [0x040c4] = 0;
    TPR "All packets received" RC [0x040d0] = 0;
    TPT "All packets transmitted" RC [0x040d4] = 0;
    PTC64 "Frames of 64 bytes transmitted" RC [0x040d8] = 0;
    PTC127 "Frames of 65 to 127 bytes transmitted" RC [0x040dc] = 0;
    PTC255 "Frames of 128 to 255 bytes transmitted" RC [0x040e0] = 0;
    PTC511 "Frames of 256 to 511 bytes transmitted" RC [0x040e4] = 0;
    PTC1023 "Frames of 512 to 1023 bytes transmitted" RC [0x040e8] = 0;
    PTC1522 "Frames of 1024 bytes and more transmitted" RC [0x040ec] = 0;
    MPTC "Multicast packets transmitted" RC [0x040f0] = 0;
    BPTC "Broadcast packets transmitted" RC [0x040f4] = 0;
    XEC "Packets with a wrong checksum" RC [0x04120] = 0;
    PXONRXCNT "Priority XON received" RC [0x04140 + 4 * 8] = 0;
    PXOFFRXCNT "Priority XOFF received" RC [0x04160 + 4 * 8] = 0;
    LXONRXCNT "XON received" RC [0x041a4] = 0;
    LXOFFRXCNT "XOFF received" RC [0x041a8] = 0;
    RXNFGPC "Good packets before filtering" RC [0x041b0] = 0;
    RXNFGBCL "Good bytes before filtering, low" RC [0x041b4] = 0;
    RXNFGBCH "Good bytes before filtering, high" RC [0x041b8] = 0;
    FCCRC "Fibre Channel check sequence errors" RC [0x05118] = 0;
    QPRC "Packets received by a counter's queues" RC [0x01030 + 0x40 * 16] = 0;
    QBRC_L "Bytes received by a counter's queues, low" RC [0x01034 + 0x40 * 16] = 0;
    QBRC_H "Bytes received by a counter's queues, high" RC [0x01038 + 0x40 * 16] = 0;
    QPRDC "Packets dropped by a counter's queues" RC [0x01430 + 0x40 * 16] = 0;
    QPTC "Packets transmitted by a counter's queues" RC [0x08680 + 4 * 16] also [0x06030 + 0x40 * 16] = 0;
    QBTC_L "Bytes transmitted by a counter's queues, low" RC [0x08700 + 8 * 16] = 0;
    QBTC_H "Bytes transmitted by a counter's queues, high" RC [0x08704 + 8 * 16] = 0;
    SSVPC "Packets that violated the switch's security" RC [0x08780] = 0;
    TXDGPC "Packets taken from the host" RC [0x087a0] = 0;
    TXDGBCL "Bytes taken from the host, low" RC [0x087a4] = 0;
    TXDGBCH "Bytes taken from the host, high" RC [0x087a8] = 0;
}

/// Registers that reading changes though they are neither counters nor causes: it takes a semaphore, the second one on an X540.
pub const TAKEN_BY_READING: &[&str] = &["SWSM", "SW_FW_SYNC"];
