//! Routes to pods.

use bulkhead_plugin::v1::route_operation::{CreateRoute, DeleteRoute, Operation, ReplaceRoute};
use bulkhead_plugin::v1::route_result::Result as Done;
use bulkhead_plugin::v1::{self, ErrorReason, RouteOwner};
use bulkhead_sim::cloud::{Kind, Object, Power};

use crate::fixture::{MACHINES, Stage, cluster, intent};

fn node(number: u32) -> v1::RouteNode {
    v1::RouteNode {
        name: format!("node-{number}"),
        provider_id: format!("sim://i-{number}"),
        ..Default::default()
    }
}

fn create(cidr: &str, number: u32) -> Operation {
    Operation::Create(CreateRoute {
        cidr: cidr.to_owned(),
        node: Some(node(number)),
    })
}

fn route(cidr: &str) -> v1::Route {
    v1::Route {
        cidr: cidr.to_owned(),
        ..Default::default()
    }
}

async fn apply(stage: &Stage, operations: Vec<Operation>) -> Vec<String> {
    let numbered = operations
        .into_iter()
        .enumerate()
        .map(|(number, operation)| v1::RouteOperation {
            id: number.to_string(),
            operation: Some(operation),
        });
    let request = v1::ApplyRoutesRequest {
        cluster: Some(cluster()),
        intent: Some(intent()),
        operations: numbered.collect(),
    };
    let answer = stage
        .host
        .clone()
        .apply_routes(request)
        .await
        .unwrap()
        .into_inner();
    let word = |result: v1::RouteResult| match result.result {
        Some(Done::Done(route)) => format!("{} {}", route.cidr, route.target_node),
        Some(Done::Deleted(_)) => "deleted".to_owned(),
        Some(Done::Error(error)) => error.reason().as_str_name().replace("ERROR_REASON_", ""),
        other => format!("{other:?}"),
    };
    answer.results.into_iter().map(word).collect()
}

async fn list(stage: &Stage) -> Vec<v1::Route> {
    let request = v1::ListRoutesRequest {
        cluster: Some(cluster()),
        cluster_cidrs: vec!["10.244.0.0/16".to_owned()],
        ..Default::default()
    };
    let answer = stage
        .host
        .clone()
        .list_routes(request)
        .await
        .unwrap()
        .into_inner();
    assert!(answer.verdict.unwrap().complete);
    answer.routes
}

#[tokio::test]
async fn a_route_is_made_once_moved_and_deleted() {
    let stage = Stage::led(MACHINES).await;
    let writes = stage.writes();
    for _ in 0..3 {
        assert_eq!(
            apply(&stage, vec![create("10.244.1.0/24", 1)]).await,
            ["10.244.1.0/24 node-1"]
        );
    }
    assert_eq!(stage.writes(), writes + 1);
    let replace = Operation::Replace(ReplaceRoute {
        old: Some(route("10.244.1.0/24")),
        node: Some(node(2)),
    });
    assert_eq!(apply(&stage, vec![replace]).await, ["10.244.1.0/24 node-2"]);
    stage
        .cloud
        .with(|cloud, now| cloud.set_power("i-2", Power::Terminated, now));
    let listed = list(&stage).await;
    assert_eq!(
        (listed.len(), listed[0].owner(), listed[0].blackhole),
        (1, RouteOwner::Ours, true)
    );
    let delete = || {
        Operation::Delete(DeleteRoute {
            route: Some(route("10.244.1.0/24")),
        })
    };
    assert_eq!(
        apply(&stage, vec![delete(), delete()]).await,
        ["deleted", "deleted"]
    );
    assert_eq!(list(&stage).await, []);
}

#[tokio::test]
async fn one_bad_operation_fails_only_its_own_cidr_and_foreign_routes_stay() {
    let stage = Stage::led(MACHINES).await;
    let table = stage.of(Kind::RouteTable).remove(0);
    let foreign = Object {
        id: String::new(),
        kind: Kind::Route,
        name: "10.244.9.0/24".to_owned(),
        parent: Some(table.id.clone()),
        ..table
    };
    stage.cloud.with(|cloud, now| cloud.put(foreign, now)).unwrap();
    let told = apply(
        &stage,
        vec![
            Operation::Delete(DeleteRoute {
                route: Some(route("10.244.9.0/24")),
            }),
            create("10.244.9.0/24", 1),
            create("10.244.2.0/24", 2),
            create("nonsense", 1),
        ],
    )
    .await;
    let reasons = [ErrorReason::ForeignOwner, ErrorReason::Conflict]
        .map(|it| it.as_str_name().replace("ERROR_REASON_", ""));
    assert_eq!(told[..2], reasons);
    assert_eq!(told[2..], ["10.244.2.0/24 node-2", "INVALID_SPEC"]);
    let owners: Vec<_> = list(&stage).await.iter().map(v1::Route::owner).collect();
    assert_eq!(owners, [RouteOwner::Foreign, RouteOwner::Ours]);
}

#[tokio::test]
async fn a_full_table_says_so() {
    let stage = Stage::led(&format!("{MACHINES}  settings: {{quotas: {{route: 1}}}}\n")).await;
    let told = apply(
        &stage,
        vec![create("10.244.1.0/24", 1), create("10.244.2.0/24", 2)],
    )
    .await;
    assert_eq!(told, ["10.244.1.0/24 node-1", "LIMIT_REACHED"]);
}
