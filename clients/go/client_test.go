package bray

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The server of tests/test_go_client.py: PORT is that of an actor which does as its tick says, and
// BRAY_TEST_TOKEN_PORT that of one which wants the token "secret".
func dialTest(t *testing.T, variable string, options Options) (*Client, error) {
	t.Helper()
	port := os.Getenv(variable)
	if port == "" {
		t.Skip(variable + " is not set: run by tests/test_go_client.py")
	}
	client, err := Dial(context.Background(), "127.0.0.1:"+port, options)
	if err == nil {
		t.Cleanup(func() { client.Close() })
	}
	return client, err
}

func dialActor(t *testing.T) *Client {
	t.Helper()
	client, err := dialTest(t, "BRAY_TEST_PORT", Options{})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// code is what an error says.
func code(err error) string {
	var service *ServiceError
	var connection *ConnectionError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &service):
		return service.Code
	case errors.As(err, &connection):
		return connection.Code
	}
	return err.Error()
}

func expect(t *testing.T, got []byte, err error, want string) {
	t.Helper()
	if err != nil || string(got) != want {
		t.Fatalf("got %q, %v, expected %q", got, err, want)
	}
}

func expectCode(t *testing.T, err error, want string) {
	t.Helper()
	if code(err) != want {
		t.Fatalf("got %v, expected %s", err, want)
	}
}

var background = context.Background()

func TestLife(t *testing.T) {
	client := dialActor(t)
	session := "life-säule"
	got, err := client.Start(background, session, nil)
	expect(t, got, err, "started")
	got, err = client.Tick(background, session, []byte("\x00\x01\xff"))
	expect(t, got, err, "\x00\x01\xff")
	got, err = client.Tick(background, session, []byte("who"))
	expect(t, got, err, session)
	if err := client.Ping(background); err != nil {
		t.Fatal(err)
	}
	got, err = client.End(background, session, nil)
	expect(t, got, err, "ended")
}

func TestErrors(t *testing.T) {
	client := dialActor(t)
	_, err := client.Tick(background, "nobody", nil)
	expectCode(t, err, "unknown_session")
	client.Start(background, "errors", nil)
	_, err = client.Start(background, "errors", nil)
	expectCode(t, err, "session_exists")
	_, err = client.Tick(background, "errors", []byte("fail"))
	expectCode(t, err, "service_error")
	if !strings.Contains(err.Error(), `ValueError: no "tick" säule 🎮`) {
		t.Fatalf("got %v", err)
	}
	_, err = client.Call(background, nil)
	expectCode(t, err, "bad_request")
	_, err = client.Start(background, "\xff", nil)
	expectCode(t, err, "bad_session")
	_, err = client.Start(background, strings.Repeat("x", 70000), nil)
	expectCode(t, err, "bad_session")
	_, err = client.Tick(background, "errors", make([]byte, 16<<20+1))
	expectCode(t, err, "body_too_large")
	_, err = client.Tick(background, "errors", nil)
	expectCode(t, err, "unknown_session") // a new connection
}

func TestManyGoroutines(t *testing.T) {
	client := dialActor(t)
	var group sync.WaitGroup
	var failed atomic.Int32
	for i := 0; i < 100; i++ {
		session := fmt.Sprintf("many-%d", i)
		group.Add(1)
		go func() {
			defer group.Done()
			_, err := client.Start(background, session, nil)
			for j := 0; j < 10 && err == nil; j++ {
				var got []byte
				if got, err = client.Tick(background, session, []byte("who")); string(got) != session {
					failed.Add(1)
				}
			}
			if err != nil {
				failed.Add(1)
			}
		}()
	}
	group.Wait()
	if failed.Load() != 0 {
		t.Fatalf("%d failed", failed.Load())
	}
}

func TestDeadline(t *testing.T) {
	client := dialActor(t)
	client.Start(background, "late", nil)
	client.Start(background, "other", nil)
	ctx, cancel := context.WithTimeout(background, 50*time.Millisecond)
	defer cancel()
	if _, err := client.Tick(ctx, "late", []byte("sleep 0.3")); err != context.DeadlineExceeded {
		t.Fatalf("got %v", err)
	}
	got, err := client.Tick(background, "other", []byte("who"))
	expect(t, got, err, "other")
	_, err = client.Tick(background, "late", nil)
	expectCode(t, err, "busy")
	for code(err) == "busy" {
		time.Sleep(10 * time.Millisecond)
		got, err = client.Tick(background, "late", []byte("who"))
	}
	expect(t, got, err, "late")
}

func TestBigBodies(t *testing.T) {
	client := dialActor(t)
	body := bytes.Repeat([]byte("0123456789abcdef"), 4<<20/16)
	var group sync.WaitGroup
	for i := 0; i < 4; i++ {
		session := fmt.Sprintf("big-%d", i)
		group.Add(1)
		go func() {
			defer group.Done()
			client.Start(background, session, nil)
			if got, err := client.Tick(background, session, body); err != nil || !bytes.Equal(got, body) {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
		}()
	}
	group.Wait()
}

func TestTokens(t *testing.T) {
	client, err := dialTest(t, "BRAY_TEST_TOKEN_PORT", Options{Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := client.Start(background, "token", nil)
	expect(t, got, err, "started")
	for _, token := range []string{"", "wrong"} {
		_, err := dialTest(t, "BRAY_TEST_TOKEN_PORT", Options{Token: token})
		expectCode(t, err, "unauthorized")
	}
}

func TestClose(t *testing.T) {
	client := dialActor(t)
	client.Start(background, "closed", nil)
	done := make(chan error)
	go func() {
		_, err := client.Tick(background, "closed", []byte("sleep 60"))
		done <- err
	}()
	time.Sleep(50 * time.Millisecond) // either answer below is right, this one is likelier
	client.Close()
	if err := <-done; code(err) != CodeConnectionLost && err != ErrClosed {
		t.Fatalf("got %v", err)
	}
	if _, err := client.Tick(background, "closed", nil); err != ErrClosed {
		t.Fatalf("got %v", err)
	}
}

// rawServer answers pings itself and leaves the rest to handle, which returns false to close.
func rawServer(t *testing.T, handle func(frame Frame, to net.Conn, connection int) bool) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for number := 0; ; number++ {
			socket, err := listener.Accept()
			if err != nil {
				return
			}
			go func(number int) {
				defer socket.Close()
				buffer := bufio.NewReader(socket)
				for isFirst := true; ; isFirst = false {
					frame, err := readFrame(buffer, 1<<20, 256)
					if err != nil {
						return
					}
					if isFirst {
						socket.Write(appendFrame(nil, Frame{KindPong, frame.RequestID, "", nil}))
					} else if !handle(frame, socket, number) {
						return
					}
				}
			}(number)
		}
	}()
	return listener.Addr().String()
}

func TestBadServers(t *testing.T) {
	header := func(change func([]byte)) []byte {
		frame := appendFrame(nil, Frame{KindReply, 2, "", nil})
		change(frame)
		return frame
	}
	for name, c := range map[string]struct {
		answer []byte
		code   string
	}{
		"HTTP":              {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), "bad_frame"},
		"magic":             {header(func(b []byte) { b[2] = 'X' }), "bad_frame"},
		"version":           {header(func(b []byte) { b[3] = 2 }), "bad_frame"},
		"kind":              {header(func(b []byte) { b[4] = 99 }), "bad_frame"},
		"request":           {header(func(b []byte) { b[4] = 2 }), "bad_frame"},
		"pong":              {header(func(b []byte) { b[4] = 9 }), "bad_frame"},
		"flags":             {header(func(b []byte) { b[5] = 1 }), "bad_frame"},
		"size":              {header(func(b []byte) { b[15] = 0xFF }), "body_too_large"},
		"reply to nothing":  {header(func(b []byte) { b[9] = 1 }), "bad_frame"},
		"nothing":           {nil, "connection_lost"},
		"half a frame":      {header(func(b []byte) {})[:9], "connection_lost"},
		"connection's own":  {appendFrame(nil, Frame{KindError, 0, "", []byte(`{"code":"c","message":"m"}`)}), "connection_lost"},
		"half a large body": {header(func(b []byte) { b[14] = 1 }), "connection_lost"},
	} {
		t.Run(name, func(t *testing.T) {
			var ticks atomic.Int32
			address := rawServer(t, func(frame Frame, to net.Conn, _ int) bool {
				ticks.Add(1)
				to.Write(c.answer)
				return false
			})
			client, err := Dial(background, address, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			_, err = client.Tick(background, "s", nil)
			var lost *ConnectionError
			if !errors.As(err, &lost) || lost.Code != c.code {
				t.Fatalf("got %v, expected %s", err, c.code)
			}
			if ticks.Load() != 1 {
				t.Fatal("sent again")
			}
		})
	}
}

func TestItConnectsAgain(t *testing.T) {
	address := rawServer(t, func(frame Frame, to net.Conn, number int) bool {
		if number == 0 {
			return false
		}
		to.Write(appendFrame(nil, Frame{KindReply, frame.RequestID, "", []byte("here")}))
		return true
	})
	client, err := Dial(background, address, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = client.Call(background, nil)
	expectCode(t, err, CodeConnectionLost)
	got, err := client.Call(background, nil)
	expect(t, got, err, "here")
}

// A server that answers the greeting and nothing else is given up.
func TestSilence(t *testing.T) {
	address := rawServer(t, func(Frame, net.Conn, int) bool { return true })
	client, err := Dial(background, address, Options{ConnectTimeout: 50 * time.Millisecond, Timeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	first, _ := client.alive()
	if _, err := client.Call(background, nil); err != context.DeadlineExceeded {
		t.Fatalf("got %v", err)
	}
	select {
	case <-first.gone:
	case <-time.After(5 * time.Second):
		t.Fatal("the connection is still there")
	}
}

func TestNobodyThere(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_, err = Dial(background, address, Options{ConnectTimeout: 50 * time.Millisecond}) // never accepted
	expectCode(t, err, CodeUnreachable)
	listener.Close()
	_, err = Dial(background, address, Options{})
	expectCode(t, err, CodeUnreachable)
}
