//! What any gRPC client finds on the agent's sockets without our code: health, and the services by
//! reflection in both versions that clients speak.

use std::path::PathBuf;
use tidegate_tests::{Node, TRUSTING, clock};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

const SERVICES: [&str; 3] = [
    "tidegate.v1.Node",
    "tidegate.v1.Control",
    "grpc.health.v1.Health",
];

async fn connect(path: PathBuf) -> Channel {
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move {
            let stream = tokio::net::UnixStream::connect(path).await?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
        }
    });
    Endpoint::from_static("http://localhost")
        .timeout(clock::DEADLINE)
        .connect_with_connector(connector)
        .await
        .expect("the agent listens")
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made")
        .block_on(work)
}

async fn health(channel: &Channel, service: &str) -> Result<ServingStatus, tonic::Code> {
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = HealthClient::new(channel.clone()).check(request).await;
    answer
        .map(|answer: tonic::Response<HealthCheckResponse>| answer.into_inner().status())
        .map_err(|status| status.code())
}

/// P-OPERATE-10: any gRPC client finds health and reflection.
#[test]
fn health_says_which_services_a_socket_serves() {
    let node = Node::new(&[], TRUSTING);
    block_on(async {
        let control = connect(node.run_dir().join("control.sock")).await;
        let status = connect(node.run_dir().join("status.sock")).await;
        for channel in [&control, &status] {
            let whole = health(channel, "").await;
            assert_eq!(whole, Ok(ServingStatus::Serving));
            let read = health(channel, "tidegate.v1.Node").await;
            assert_eq!(read, Ok(ServingStatus::Serving));
        }
        let steer = "tidegate.v1.Control";
        assert_eq!(health(&control, steer).await, Ok(ServingStatus::Serving));
        assert_eq!(health(&status, steer).await, Err(tonic::Code::NotFound));
    });
}

/// The two versions differ in nothing but their package.
macro_rules! reflects {
    ($name:ident, $version:ident) => {
        /// P-OPERATE-10: any gRPC client finds health and reflection.
        #[test]
        fn $name() {
            use pb::server_reflection_request::MessageRequest;
            use pb::server_reflection_response::MessageResponse;
            use tonic_reflection::pb::$version as pb;

            async fn ask(channel: &Channel, request: MessageRequest) -> MessageResponse {
                let request = pb::ServerReflectionRequest {
                    host: String::new(),
                    message_request: Some(request),
                };
                let mut client =
                    pb::server_reflection_client::ServerReflectionClient::new(channel.clone());
                let answers = client
                    .server_reflection_info(tokio_stream::iter([request]))
                    .await
                    .expect("the agent answers");
                let answer = answers.into_inner().message().await.expect("an answer");
                let answer = answer.and_then(|answer| answer.message_response);
                answer.expect("an answer that says something")
            }

            let node = Node::new(&[], TRUSTING);
            block_on(async {
                for socket in ["control.sock", "status.sock"] {
                    let channel = connect(node.run_dir().join(socket)).await;
                    let list = MessageRequest::ListServices(String::new());
                    let MessageResponse::ListServicesResponse(list) = ask(&channel, list).await
                    else {
                        panic!("no list of services");
                    };
                    let names: Vec<_> = list.service.iter().map(|s| s.name.as_str()).collect();
                    for service in SERVICES {
                        assert!(names.contains(&service), "{socket}: {names:?}");
                    }
                    let symbol = "tidegate.v1.Node.GetStatus".to_owned();
                    let file = MessageRequest::FileContainingSymbol(symbol);
                    let MessageResponse::FileDescriptorResponse(found) = ask(&channel, file).await
                    else {
                        panic!("no file with Node.GetStatus");
                    };
                    assert!(!found.file_descriptor_proto.is_empty());
                }
            });
        }
    };
}

reflects!(reflection_describes_the_services_to_clients_of_v1, v1);
reflects!(reflection_describes_the_services_to_older_clients, v1alpha);
