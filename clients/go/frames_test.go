package bray

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"
	"testing/iotest"
)

var kinds = map[string]Kind{
	"START": KindStart, "TICK": KindTick, "END": KindEnd, "CALL": KindCall, "REPLY": KindReply,
	"ERROR": KindError, "HELLO": KindHello, "PING": KindPing, "PONG": KindPong,
}

type vector struct {
	Name      string
	Hex       string
	Kind      string
	RequestID uint32 `json:"request_id"`
	Session   string
	BodyHex   string `json:"body_hex"`
	Error     string
}

func load(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile("../../tests/vectors/" + name)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	data, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestVectors(t *testing.T) {
	var vectors []vector
	load(t, "frames.json", &vectors)
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			data := unhex(t, v.Hex)
			got, err := readFrame(iotest.OneByteReader(bytes.NewReader(data)), 1000, 100)
			if v.Error != "" {
				checkRefused(t, err, v)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Kind != kinds[v.Kind] || got.RequestID != v.RequestID || got.Session != v.Session ||
				!bytes.Equal(got.Body, unhex(t, v.BodyHex)) {
				t.Fatalf("got %+v", got)
			}
			if again := appendFrame(nil, got); !bytes.Equal(again, data) {
				t.Fatalf("packed %x", again)
			}
			for cut := range data {
				_, err := readFrame(bytes.NewReader(data[:cut]), 1000, 100)
				if want := io.ErrUnexpectedEOF; cut > 0 && err != want || cut == 0 && err != io.EOF {
					t.Fatalf("cut at %d: got %v", cut, err)
				}
			}
		})
	}
}

func TestRefused(t *testing.T) {
	var refused struct {
		MaxBodyBytes    int `json:"max_body_bytes"`
		MaxSessionBytes int `json:"max_session_bytes"`
		Frames          []vector
	}
	load(t, "frames_refused.json", &refused)
	for _, v := range refused.Frames {
		data := bytes.NewReader(unhex(t, v.Hex))
		_, err := readFrame(data, refused.MaxBodyBytes, refused.MaxSessionBytes)
		checkRefused(t, err, v)
		var bad *FrameError
		if errors.As(err, &bad) && bad.RequestID != v.RequestID {
			t.Errorf("%s: got request id %d", v.Name, bad.RequestID)
		}
	}
}

func checkRefused(t *testing.T, err error, v vector) {
	t.Helper()
	var bad *FrameError
	if !errors.As(err, &bad) || bad.Code != v.Error {
		t.Errorf("%s: got %v, expected %s", v.Name, err, v.Error)
	}
}

func TestErrorBodies(t *testing.T) {
	got := parseError([]byte(`{"code": "busy", "message": "s\u00e4ule \ud83c\udfae", "more": [1]}`))
	if got.Code != "busy" || got.Message != "säule 🎮" {
		t.Errorf("got %v", got)
	}
	for _, bad := range []string{"", "[]", "{}", `{"code": 1, "message": "m"}`, `{"code": "c"}`, "\xff"} {
		if got := parseError([]byte(bad)); got.Code != CodeBadFrame {
			t.Errorf("%q: got %v", bad, got)
		}
	}
}
