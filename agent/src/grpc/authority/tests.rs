//! Every method of the contract, for every kind of caller, on every socket.

use super::*;
use prost::Message;
use std::collections::BTreeSet;

/// Every method that the agent serves, from the descriptors that it shows by reflection.
fn methods() -> BTreeSet<String> {
    let sets = [
        tidegate_proto::DESCRIPTOR,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ];
    let mut methods = BTreeSet::new();
    for set in sets {
        let set = prost_types::FileDescriptorSet::decode(set).expect("a descriptor");
        for file in set.file {
            for service in &file.service {
                for method in &service.method {
                    methods.insert(format!(
                        "/{}.{}/{}",
                        file.package(),
                        service.name(),
                        method.name()
                    ));
                }
            }
        }
    }
    methods
}

const OPERATORS: Operators = Operators {
    own_uid: 500,
    group: Some(77),
};

fn peer(uid: u32, groups: &[u32], contained: &str) -> Credentials {
    Credentials {
        uid,
        groups: groups.to_vec(),
        contained: contained.to_owned(),
        ..Credentials::default()
    }
}

/// Kinds of callers, and whether they steer the node.
fn identities() -> [(&'static str, Credentials, bool); 7] {
    let inside = "it is in container 0123456789ab";
    [
        ("root", peer(0, &[0], ""), true),
        ("the agent's user", peer(500, &[500], ""), true),
        ("group tidegate", peer(1000, &[1000, 77], ""), true),
        ("another user", peer(1000, &[1000, 78], ""), false),
        ("root of a container", peer(0, &[0], inside), false),
        (
            "the agent's user in a container",
            peer(500, &[500], inside),
            false,
        ),
        (
            "group tidegate in a container",
            peer(1000, &[77], inside),
            false,
        ),
    ]
}

/// What a call is about, from the name of its service alone.
fn allowed(socket: Socket, method: &str, steers: bool) -> bool {
    let service = method.split('/').nth(1).unwrap_or_default();
    match (socket, service) {
        (Socket::Hook, "tidegate.v1.Runtime") => true,
        (Socket::Control, "tidegate.v1.Control") => steers,
        (Socket::Control | Socket::Status, service) => {
            service == "tidegate.v1.Node" || service.starts_with("grpc.")
        }
        (Socket::Hook, _) => false,
    }
}

/// P-SECURITY-3: every method, caller and socket is answered as the table says.
#[test]
fn every_method_is_answered_as_its_service_says_whoever_calls_it_wherever() {
    let methods = methods();
    assert!(methods.len() >= 15, "{methods:?}");
    for socket in [Socket::Hook, Socket::Control, Socket::Status] {
        for method in &methods {
            for (who, credentials, steers) in identities() {
                let admitted = admit(socket, method, &credentials, OPERATORS);
                let expected = allowed(socket, method, steers);
                assert_eq!(
                    admitted.is_ok(),
                    expected,
                    "{method} by {who} on {socket:?}: {admitted:?}"
                );
            }
        }
    }
}

/// P-SECURITY-3: every method, caller and socket is answered as the table says.
#[test]
fn every_method_of_the_contract_has_a_row_and_every_row_is_a_method() {
    let methods = methods();
    for method in &methods {
        let rows = METHODS
            .iter()
            .filter(|(row, _, _)| row == method || (row.ends_with('/') && method.starts_with(row)));
        assert_eq!(rows.count(), 1, "{method} needs one row in METHODS");
    }
    for (row, sockets, _) in METHODS {
        assert!(!sockets.is_empty(), "{row}");
        let served = methods
            .iter()
            .any(|method| method == row || (row.ends_with('/') && method.starts_with(row)));
        assert!(served, "{row} is no method");
    }
}

/// P-SECURITY-3: every method, caller and socket is answered as the table says.
#[test]
fn what_no_row_names_is_refused_to_root() {
    let root = peer(0, &[0], "");
    for path in [
        "/tidegate.v1.Control/Unheard",
        "/tidegate.v1.Node/",
        "/",
        "",
        "//",
        "/tidegate.v1.Node/GetStatus/",
    ] {
        for socket in [Socket::Hook, Socket::Control, Socket::Status] {
            assert!(admit(socket, path, &root, OPERATORS).is_err(), "{path}");
        }
    }
    let nobody = Operators {
        group: None,
        ..OPERATORS
    };
    let member = peer(1000, &[77], "");
    assert!(
        admit(
            Socket::Control,
            "/tidegate.v1.Control/Pause",
            &member,
            nobody
        )
        .is_err()
    );
}
