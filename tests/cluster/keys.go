package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// keysValid is longer than any test or demo runs.
const keysValid = 30 * 24 * time.Hour

// keys are the paths of what a control plane proves itself with.
type keys struct {
	caCert, servingCert, servingKey, accountKey, accountPublic string
}

// ensureKeys returns the keys below dir and makes them on the first start. They
// are kept afterwards: clients go on trusting a control plane that restarts.
func ensureKeys(dir string) (keys, error) {
	folder := filepath.Join(dir, "certs")
	k := keys{
		caCert:        filepath.Join(dir, "ca.crt"),
		servingCert:   filepath.Join(folder, "apiserver.crt"),
		servingKey:    filepath.Join(folder, "apiserver.key"),
		accountKey:    filepath.Join(folder, "service-accounts.key"),
		accountPublic: filepath.Join(folder, "service-accounts.pub"),
	}
	// The authority's certificate is written last: if it exists, all do.
	if _, err := os.Stat(k.caCert); !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return k, err
	}
	if err := k.make(); err != nil {
		return k, fmt.Errorf("make keys in %s: %w", folder, err)
	}
	return k, nil
}

func (k keys) make() error {
	account, err := newKey()
	if err != nil {
		return err
	}
	if err := writeKey(k.accountKey, account); err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&account.PublicKey)
	if err != nil {
		return err
	}
	if err := writePEM(k.accountPublic, "PUBLIC KEY", public); err != nil {
		return err
	}
	authority, authorityKey, err := newAuthority()
	if err != nil {
		return err
	}
	if err := k.makeServing(authority, authorityKey); err != nil {
		return err
	}
	return writePEM(k.caCert, "CERTIFICATE", authority.Raw)
}

func (k keys) makeServing(authority *x509.Certificate, authorityKey *ecdsa.PrivateKey) error {
	key, err := newKey()
	if err != nil {
		return err
	}
	template := certificate("kube-apiserver")
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames = []string{"localhost", "kubernetes.default.svc"}
	template.IPAddresses = []net.IP{net.ParseIP(loopback), net.ParseIP("10.96.0.1")}
	der, err := x509.CreateCertificate(rand.Reader, template, authority, &key.PublicKey, authorityKey)
	if err != nil {
		return err
	}
	if err := writeKey(k.servingKey, key); err != nil {
		return err
	}
	return writePEM(k.servingCert, "CERTIFICATE", der)
}

func newAuthority() (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	template := certificate("bulkhead-cluster")
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	authority, err := x509.ParseCertificate(der)
	return authority, key, err
}

func certificate(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		// Backdated, so that a clock stepping back does not break a test.
		NotBefore: now.Add(-time.Hour),
		NotAfter:  now.Add(keysValid),
	}
}

// newKey makes an ECDSA key: milliseconds, where RSA takes up to a second.
func newKey() (*ecdsa.PrivateKey, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
