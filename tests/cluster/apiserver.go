package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

const (
	loopback = "127.0.0.1"
	// pollReady is short beside the second that a start takes.
	pollReady = 20 * time.Millisecond
)

// auditPolicy records who did what to which object, without bodies.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

type apiServer struct {
	controlPlane
	keys    keys
	etcdURL string
}

// run serves until SIGTERM; the command installs its own signal handler.
func (s apiServer) run() error {
	args, err := s.args()
	if err != nil {
		return err
	}
	command := app.NewAPIServerCommand()
	command.SetArgs(args)
	if code := cli.Run(command); code != 0 {
		return fmt.Errorf("the API server ended with code %d", code)
	}
	return nil
}

func (s apiServer) args() ([]string, error) {
	args := []string{
		"--etcd-servers=" + s.etcdURL,
		"--bind-address=" + loopback,
		// Given, because without it the server needs a default route.
		"--advertise-address=" + loopback,
		"--secure-port=" + strconv.Itoa(s.port),
		"--tls-cert-file=" + s.keys.servingCert,
		"--tls-private-key-file=" + s.keys.servingKey,
		"--client-ca-file=" + s.keys.caCert,
		"--token-auth-file=" + s.tokens,
		"--authorization-mode=RBAC",
		"--service-account-key-file=" + s.keys.accountPublic,
		"--service-account-signing-key-file=" + s.keys.accountKey,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112",
		// Without a controller manager nobody makes token secrets; and nodes
		// made by hand must not get a taint that only kubelets would remove.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
		// A loopback address is refused as an endpoint of Service kubernetes.
		"--endpoint-reconciler-type=none",
		"--allow-privileged",
		"--v=1",
	}
	if s.auditLog == "" {
		return args, nil
	}
	policy := filepath.Join(s.dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, err
	}
	return append(args, "--audit-policy-file="+policy, "--audit-log-path="+s.auditLog), nil
}

// announce prints "ready URL" once the server says that it is.
func (s apiServer) announce(ctx context.Context) {
	server := "https://" + net.JoinHostPort(loopback, strconv.Itoa(s.port))
	if err := s.awaitReady(ctx, server); err != nil {
		fmt.Fprintf(os.Stderr, "control-plane: not ready after %s: %v\n", readyWithin, err)
		return
	}
	fmt.Println("ready", server)
}

// awaitReady returns the last thing that the server said if ctx ends first.
func (s apiServer) awaitReady(ctx context.Context, server string) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	for {
		err := ready(ctx, client, server)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pollReady):
		}
	}
}

// client trusts our own authority only: another server on this port, which
// makes ours fail, must not be taken for it.
func (s apiServer) client() (*http.Client, error) {
	pem, err := os.ReadFile(s.keys.caCert)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return &http.Client{
		Timeout:   time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}},
	}, nil
}

func ready(ctx context.Context, client *http.Client, server string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s/readyz answers %s", server, response.Status)
	}
	return nil
}
