import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Pulsar's own client, told what to do by words. Each result is a line that begins with "RESULT ",
 * each step of `load` one that begins with "PROGRESS ".
 *
 * <p>Message N has key N mod KEYS, and a content from which N can be read and which N alone makes:
 * what arrives is counted by its content, never by ids.
 *
 * <p>URL load TOPIC COUNT KEYS: produce and consume at once, until each acked message has come
 *
 * <p>URL produce TOPIC FIRST COUNT KEYS batched|single
 *
 * <p>URL ack TOPIC SUBSCRIPTION KEYS COUNT THIRD: receive COUNT and ack all but those whose number
 * mod 3 is THIRD
 *
 * <p>URL drain TOPIC SUBSCRIPTION KEYS IDLE_S THIRD: receive and ack until nothing comes for so
 * long; `thirds` counts those, each once, whose number mod 3 is THIRD
 *
 * <p>URL read TOPIC KEYS plain|compacted: from the beginning to the end, by a reader
 *
 * <p>URL shared TOPIC SUBSCRIPTION KEYS COUNT: three consumers share keys; one dies half-way
 */
public final class PulsarTalk {
    private static final int FILLER = 90;
    private static final int STEPS = 50;
    private static final int QUIET_S = 90;

    private PulsarTalk() {}

    public static void main(String[] words) throws Exception {
        String[] rest = Arrays.copyOfRange(words, 2, words.length);
        try (PulsarClient client =
                PulsarClient.builder()
                        .serviceUrl(words[0])
                        .operationTimeout(90, TimeUnit.SECONDS)
                        .build()) {
            String result =
                    switch (words[1]) {
                        case "load" -> load(client, rest);
                        case "produce" -> produce(client, rest);
                        case "ack" -> ack(client, rest);
                        case "drain" -> drain(client, rest);
                        case "read" -> read(client, rest);
                        case "shared" -> shared(client, rest);
                        default -> throw new IllegalArgumentException(words[1]);
                    };
            System.out.println("RESULT " + result);
        }
    }

    private static byte[] payload(int number) {
        byte[] filler = new byte[FILLER];
        SplittableRandom random = new SplittableRandom(number);
        for (int at = 0; at < FILLER; at++) {
            filler[at] = (byte) ('a' + random.nextInt(26));
        }
        return (number + " " + new String(filler, StandardCharsets.US_ASCII))
                .getBytes(StandardCharsets.US_ASCII);
    }

    private static String key(int number, int keys) {
        return "k" + number % keys;
    }

    /** What came, by its content. */
    private static final class Tally {
        private final int keys;
        final BitSet seen = new BitSet();
        private final Map<String, Integer> last = new HashMap<>();
        int received;
        private int repeated;
        private int wrong;
        private int unordered;

        Tally(int keys) {
            this.keys = keys;
        }

        synchronized int add(Message<byte[]> message) {
            received++;
            String text = new String(message.getData(), StandardCharsets.US_ASCII);
            int number;
            try {
                number = Integer.parseInt(text.substring(0, text.indexOf(' ')));
            } catch (RuntimeException error) {
                wrong++;
                return -1;
            }
            if (!Arrays.equals(message.getData(), payload(number))
                    || !key(number, keys).equals(message.getKey())) {
                wrong++;
            } else if (seen.get(number)) {
                repeated++;
            } else {
                seen.set(number);
                if (last.getOrDefault(message.getKey(), -1) > number) {
                    unordered++;
                }
                last.merge(message.getKey(), number, Math::max);
            }
            return number;
        }

        synchronized int distinct() {
            return seen.cardinality();
        }

        /** Those of `wanted` that did not come. */
        synchronized int missing(BitSet wanted) {
            BitSet left = (BitSet) wanted.clone();
            left.andNot(seen);
            return left.cardinality();
        }

        synchronized String told() {
            return String.format(
                    "received=%d distinct=%d repeated=%d wrong=%d unordered=%d lowest=%d highest=%d",
                    received, seen.cardinality(), repeated, wrong, unordered,
                    seen.nextSetBit(0), seen.length() - 1);
        }
    }

    private static Producer<byte[]> producer(PulsarClient client, String topic, boolean batched)
            throws Exception {
        return client.newProducer()
                .topic(topic)
                .enableBatching(batched)
                .batchingMaxPublishDelay(5, TimeUnit.MILLISECONDS)
                .batchingMaxMessages(100)
                .maxPendingMessages(10_000)
                .blockIfQueueFull(true)
                .sendTimeout(0, TimeUnit.SECONDS)
                .create();
    }

    /** Messages FIRST to FIRST + COUNT; the numbers of those that were acked. */
    private static BitSet send(
            Producer<byte[]> producer, int first, int count, int keys, boolean aloud)
            throws Exception {
        BitSet acked = new BitSet();
        AtomicInteger refused = new AtomicInteger();
        for (int number = first; number < first + count; number++) {
            int sent = number;
            producer.newMessage()
                    .key(key(number, keys))
                    .value(payload(number))
                    .sendAsync()
                    .whenComplete(
                            (id, error) -> {
                                if (error == null) {
                                    synchronized (acked) {
                                        acked.set(sent);
                                    }
                                } else if (refused.getAndIncrement() == 0) {
                                    error.printStackTrace();
                                }
                            });
            if (aloud && (number - first) % Math.max(1, count / STEPS) == 0) {
                System.out.println("PROGRESS " + (number - first));
                System.out.flush();
            }
        }
        producer.flush();
        // A flush ends when the last is acked; what is told of each comes beside it.
        for (int tries = 0; tries < 100; tries++) {
            synchronized (acked) {
                if (acked.cardinality() + refused.get() == count) {
                    break;
                }
            }
            Thread.sleep(50);
        }
        synchronized (acked) {
            return (BitSet) acked.clone();
        }
    }

    private static String load(PulsarClient client, String[] words) throws Exception {
        String topic = words[0];
        int count = Integer.parseInt(words[1]);
        int keys = Integer.parseInt(words[2]);
        Tally tally = new Tally(keys);
        long begun = System.nanoTime();
        CompletableFuture<BitSet> acked = new CompletableFuture<>();
        try (Consumer<byte[]> consumer = consumer(client, topic, "load", SubscriptionType.Exclusive);
                Producer<byte[]> producer = producer(client, topic, true)) {
            Thread sender =
                    new Thread(
                            () -> {
                                try {
                                    acked.complete(send(producer, 0, count, keys, true));
                                } catch (Throwable error) {
                                    acked.completeExceptionally(error);
                                }
                            });
            sender.start();
            long heard = System.nanoTime();
            while (TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - heard) < QUIET_S) {
                Message<byte[]> message = consumer.receive(200, TimeUnit.MILLISECONDS);
                if (message != null) {
                    heard = System.nanoTime();
                    tally.add(message);
                    consumer.acknowledgeAsync(message);
                } else if (acked.isDone() && tally.missing(acked.get()) == 0) {
                    break;
                }
            }
            BitSet all = acked.get(QUIET_S, TimeUnit.SECONDS);
            double seconds = (System.nanoTime() - begun) / 1e9;
            return String.format("acked=%d lost=%d seconds=%.1f ",
                    all.cardinality(), tally.missing(all), seconds) + tally.told();
        }
    }

    private static String produce(PulsarClient client, String[] words) throws Exception {
        try (Producer<byte[]> producer = producer(client, words[0], words[4].equals("batched"))) {
            BitSet acked =
                    send(producer, Integer.parseInt(words[1]), Integer.parseInt(words[2]),
                            Integer.parseInt(words[3]), false);
            return "acked=" + acked.cardinality();
        }
    }

    private static Consumer<byte[]> consumer(
            PulsarClient client, String topic, String subscription, SubscriptionType type)
            throws Exception {
        return client.newConsumer()
                .topic(topic)
                .subscriptionName(subscription)
                .subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .acknowledgmentGroupTime(10, TimeUnit.MILLISECONDS)
                .subscribe();
    }

    private static String ack(PulsarClient client, String[] words) throws Exception {
        Tally tally = new Tally(Integer.parseInt(words[2]));
        int count = Integer.parseInt(words[3]);
        int third = Integer.parseInt(words[4]);
        int acked = 0;
        try (Consumer<byte[]> consumer =
                consumer(client, words[0], words[1], SubscriptionType.Shared)) {
            while (tally.received < count) {
                Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
                if (message == null) {
                    break;
                }
                if (tally.add(message) % 3 != third) {
                    consumer.acknowledge(message);
                    acked++;
                }
            }
        }
        return "acked=" + acked + " " + tally.told();
    }

    private static String drain(PulsarClient client, String[] words) throws Exception {
        Tally tally = new Tally(Integer.parseInt(words[2]));
        int idle = Integer.parseInt(words[3]);
        int third = Integer.parseInt(words[4]);
        try (Consumer<byte[]> consumer =
                consumer(client, words[0], words[1], SubscriptionType.Shared)) {
            while (true) {
                Message<byte[]> message = consumer.receive(idle, TimeUnit.SECONDS);
                if (message == null) {
                    break;
                }
                tally.add(message);
                consumer.acknowledge(message);
            }
        }
        long thirds = tally.seen.stream().filter(number -> number % 3 == third).count();
        return "thirds=" + thirds + " " + tally.told();
    }

    private static String read(PulsarClient client, String[] words) throws Exception {
        Tally tally = new Tally(Integer.parseInt(words[1]));
        try (Reader<byte[]> reader =
                client.newReader()
                        .topic(words[0])
                        .startMessageId(MessageId.earliest)
                        .readCompacted(words[2].equals("compacted"))
                        .create()) {
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext(60, TimeUnit.SECONDS);
                if (message == null) {
                    break;
                }
                tally.add(message);
            }
        }
        return tally.told();
    }

    private static String shared(PulsarClient client, String[] words) throws Exception {
        Tally tally = new Tally(Integer.parseInt(words[2]));
        int count = Integer.parseInt(words[3]);
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            consumers.add(consumer(client, words[0], words[1], SubscriptionType.Key_Shared));
        }
        // The first takes what it can get and dies with it: others must have all of that.
        int died = 0;
        while (died < count / 20) {
            if (consumers.get(0).receive(30, TimeUnit.SECONDS) == null) {
                break;
            }
            died++;
        }
        consumers.remove(0).close();
        long heard = System.nanoTime();
        while (tally.distinct() < count
                && TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - heard) < QUIET_S) {
            for (Consumer<byte[]> consumer : consumers) {
                Message<byte[]> message = consumer.receive(20, TimeUnit.MILLISECONDS);
                if (message != null) {
                    heard = System.nanoTime();
                    tally.add(message);
                    consumer.acknowledge(message);
                }
            }
        }
        for (Consumer<byte[]> consumer : consumers) {
            consumer.close();
        }
        return "died_with=" + died + " " + tally.told();
    }
}
