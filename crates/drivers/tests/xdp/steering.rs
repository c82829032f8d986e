//! Taking part of an interface: what a rule names is ours, the rest stays with the kernel, and both are counted.

use std::net::IpAddr;
use std::time::Duration;

use bywash_drivers::xdp::{self, Options};
use bywash_frame::Batch;
use bywash_lab::{Host, PairOptions};
use bywash_port::{Port, QueueChoice};
use bywash_sys::route::{Gateway, Prefix};

use crate::setup::{
    UDP_PORT, arena, arrived, bytes, cable, close, counter, halves, kernel_socket, open, options, packet,
    receive, row, send, udp,
};

/// Takes part, so no force is needed although the interface has an address.
fn only(expression: &str) -> Options {
    Options { only: Some(expression.parse().unwrap()), force: false, ..options() }
}

#[test]
fn only_what_matches_is_taken_and_both_are_counted() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let arena = arena(4096);
    let mut pool = arena.pool(256).unwrap();
    let mut near = open(cable.near(), "right", &Options { rx: false, ..options() }, arena);
    let mut far = open(cable.far(), "left", &only("ether proto 0x88b5"), arena);
    let (mut tx, (mut rx, far_tx)) = (near.queues().remove(0).tx.unwrap(), halves(&mut far));
    let socket = kernel_socket(cable.far());
    let mut batch = Batch::new();
    for number in 0..10_u8 {
        batch.push(packet(&mut pool, &bytes(number.into(), 60), 2048));
        batch.push(packet(&mut pool, &udp(&cable, &[number; 40]), 2048));
    }
    send(tx.as_mut(), &mut pool, &mut batch);
    let wanted: Vec<_> = (0..10).map(|number| bytes(number, 60)).collect();
    assert_eq!(receive(rx.as_mut(), &mut pool, 10), wanted);
    for number in 0..10 {
        assert_eq!(arrived(&socket), Some(vec![number; 40]));
    }
    assert_eq!((counter(&far, "taken"), counter(&far, "taken_bytes")), (10, 600));
    assert_eq!((counter(&far, "left"), counter(&far, "left_bytes")), (10, 820));
    tx.close(&mut pool);
    close(far, rx, far_tx, &mut pool);
    near.close().unwrap();
    assert_eq!(pool.free() + arena.unused(), arena.frames());
}

#[test]
fn the_default_gateway_is_never_taken() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let everywhere = Prefix { address: IpAddr::from([0, 0, 0, 0]), length: 0 };
    let gateway = Gateway { index: cable.lab.pairs[0].far.index, address: Some(IpAddr::from([10, 0, 0, 1])) };
    cable.far().add_route(everywhere, gateway).unwrap();
    let arena = arena(4096);
    let mut pool = arena.pool(256).unwrap();
    let mut near = open(cable.near(), "right", &Options { rx: false, ..options() }, arena);
    let mut far = open(cable.far(), "left", &only(&format!("udp port {UDP_PORT}")), arena);
    let (mut tx, (mut rx, far_tx)) = (near.queues().remove(0).tx.unwrap(), halves(&mut far));
    let socket = kernel_socket(cable.far());
    let mut batch = Batch::new();
    // From the gateway itself, and from a host behind it.
    let from_gateway = udp(&cable, b"from the gateway");
    let mut from_behind = udp(&cable, b"from behind it");
    from_behind[26..30].copy_from_slice(&[10, 9, 9, 9]);
    batch.push(packet(&mut pool, &from_gateway, 2048));
    batch.push(packet(&mut pool, &from_behind, 2048));
    send(tx.as_mut(), &mut pool, &mut batch);
    assert_eq!(receive(rx.as_mut(), &mut pool, 2), [from_behind]);
    assert_eq!(arrived(&socket).as_deref(), Some(&b"from the gateway"[..]));
    assert_eq!((counter(&far, "taken"), counter(&far, "never_take"), counter(&far, "left")), (1, 1, 0));
    tx.close(&mut pool);
    close(far, rx, far_tx, &mut pool);
    near.close().unwrap();
}

#[test]
fn a_default_gateway_behind_another_interface_is_never_taken() {
    let Some(cable) = row(3, &PairOptions::default()) else { return };
    // As for a VLAN or bridge on top: the route names another interface than the one that has the packets.
    let everywhere = Prefix { address: IpAddr::from([0, 0, 0, 0]), length: 0 };
    let gateway =
        Gateway { index: cable.lab.pairs[1].near.index, address: Some(IpAddr::from([10, 0, 1, 2])) };
    cable.far().add_route(everywhere, gateway).unwrap();
    let arena = arena(4096);
    let mut pool = arena.pool(256).unwrap();
    let mut near = open(cable.near(), "right", &Options { rx: false, ..options() }, arena);
    let mut far = open(cable.far(), "left", &only("ip"), arena);
    let (mut tx, (mut rx, far_tx)) = (near.queues().remove(0).tx.unwrap(), halves(&mut far));
    let others = udp(&cable, b"from another");
    let mut gateways = others.clone();
    gateways[26..30].copy_from_slice(&[10, 0, 1, 2]);
    let mut batch = Batch::new();
    batch.push(packet(&mut pool, &gateways, 2048));
    batch.push(packet(&mut pool, &others, 2048));
    send(tx.as_mut(), &mut pool, &mut batch);
    assert_eq!(receive(rx.as_mut(), &mut pool, 2), [others]);
    assert_eq!((counter(&far, "taken"), counter(&far, "never_take")), (1, 1));
    tx.close(&mut pool);
    close(far, rx, far_tx, &mut pool);
    near.close().unwrap();
}

#[test]
fn the_operators_connection_is_never_taken_also_behind_sudo() {
    const INNER: &str = "BYWASH_TEST_BEHIND_SUDO";
    if std::env::var_os(INNER).is_none() {
        // A shell that has the variable starts this test once more without it, as sudo does.
        let again = format!("env -u SSH_CONNECTION {INNER}=1 \"$0\" --exact --nocapture \"$1\"; exit $?");
        let test = "steering::the_operators_connection_is_never_taken_also_behind_sudo";
        let status = std::process::Command::new("sh")
            .args(["-c", &again])
            .arg(std::env::current_exe().unwrap())
            .arg(test)
            .env("SSH_CONNECTION", format!("10.0.0.1 {UDP_PORT} 10.0.0.2 {UDP_PORT}"))
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let arena = arena(4096);
    let mut pool = arena.pool(256).unwrap();
    let mut near = open(cable.near(), "right", &Options { rx: false, ..options() }, arena);
    let mut far = open(cable.far(), "left", &only("ip"), arena);
    let (mut tx, (mut rx, far_tx)) = (near.queues().remove(0).tx.unwrap(), halves(&mut far));
    // The operator's segment and, from another host, one that is not.
    let mut batch = Batch::new();
    let mut operators = udp(&cable, &[0; 40]);
    operators[23] = 6;
    let mut others = operators.clone();
    others[29] = 9;
    batch.push(packet(&mut pool, &operators, 2048));
    batch.push(packet(&mut pool, &others, 2048));
    send(tx.as_mut(), &mut pool, &mut batch);
    assert_eq!(receive(rx.as_mut(), &mut pool, 2), [others]);
    assert_eq!((counter(&far, "taken"), counter(&far, "never_take")), (1, 1));
    tx.close(&mut pool);
    close(far, rx, far_tx, &mut pool);
    near.close().unwrap();
}

#[test]
fn packets_of_a_queue_that_is_not_open_are_not_called_hung() {
    let Some(cable) = cable(&PairOptions { queues: 2, ..PairOptions::default() }) else { return };
    let arena = arena(4096);
    let mut pool = arena.pool(256).unwrap();
    let only_send = Options { rx: false, ..options() };
    let by_queue = |host: &Host, interface: &str, queue, options: &Options| {
        let choice = QueueChoice { queue: Some(queue), rx_only: false };
        Box::new(host.enter(|| xdp::open(interface, choice, options, arena)).unwrap().unwrap())
    };
    let mut near = by_queue(cable.near(), "right", 0, &only_send);
    let mut far = by_queue(cable.far(), "left", 1, &options());
    let mut tx = near.queues().remove(0).tx.unwrap();
    let mut batch = Batch::new();
    batch.push(packet(&mut pool, &bytes(1, 60), 2048));
    send(tx.as_mut(), &mut pool, &mut batch);
    assert_eq!((counter(&far, "no_socket"), counter(&far, "hung"), counter(&far, "taken")), (1, 0, 0));
    let (rx, far_tx) = halves(&mut far);
    close(far, rx, far_tx, &mut pool);

    // The same for a queue whose receiving half has been closed for longer than a worker may be silent.
    let mut far = by_queue(cable.far(), "left", 0, &options());
    let (rx, far_tx) = halves(&mut far);
    rx.close(&mut pool);
    std::thread::sleep(Duration::from_millis(600));
    for _ in 0..2 {
        batch.push(packet(&mut pool, &bytes(2, 60), 2048));
        send(tx.as_mut(), &mut pool, &mut batch);
    }
    assert_eq!((counter(&far, "no_socket"), counter(&far, "hung"), counter(&far, "taken")), (2, 0, 0));
    far_tx.close(&mut pool);
    far.close().unwrap();
    tx.close(&mut pool);
    near.close().unwrap();
}

#[test]
fn packets_that_nobody_asks_for_go_to_the_kernel_after_half_a_second() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let arena = arena(4096);
    let mut pool = arena.pool(256).unwrap();
    let mut near = open(cable.near(), "right", &Options { rx: false, ..options() }, arena);
    let mut far = open(cable.far(), "left", &options(), arena);
    let (mut tx, (mut rx, far_tx)) = (near.queues().remove(0).tx.unwrap(), halves(&mut far));
    let socket = kernel_socket(cable.far());
    let mut batch = Batch::new();
    let mut send_one = |pool: &mut _| {
        batch.push(packet(pool, &udp(&cable, b"hello"), 2048));
        send(tx.as_mut(), pool, &mut batch);
    };
    send_one(&mut pool);
    std::thread::sleep(Duration::from_millis(600));
    send_one(&mut pool);
    assert!(arrived(&socket).is_some());
    assert_eq!((counter(&far, "taken"), counter(&far, "hung")), (1, 1));
    // What came before is still there, and one call is enough to get the next ones.
    assert_eq!(receive(rx.as_mut(), &mut pool, 1).len(), 1);
    send_one(&mut pool);
    assert_eq!(receive(rx.as_mut(), &mut pool, 1).len(), 1);
    assert_eq!((counter(&far, "taken"), counter(&far, "hung")), (2, 1));
    // However long nothing came: the first packet after it is ours.
    std::thread::sleep(Duration::from_millis(600));
    send_one(&mut pool);
    assert_eq!(receive(rx.as_mut(), &mut pool, 1).len(), 1);
    tx.close(&mut pool);
    close(far, rx, far_tx, &mut pool);
    near.close().unwrap();
}
